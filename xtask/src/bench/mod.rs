//! `cargo xtask bench`: us against everything else on the same emulated cable.

mod candidate;
mod counts;
mod docs;
mod ends;
mod figure;
mod measure;
mod pace;
mod raw;
mod report;
mod results;
mod stream;
mod targets;
mod tcp;
mod verbs;

use crate::{build, package};
use anyhow::{ensure, Context, Result};
use candidate::{Candidate, Place};
use clap::{Args, ValueEnum};
use figure::{Extent, Figure};
use indicatif::{ProgressBar, ProgressStyle};
use measure::{stage, Plan};
use results::Results;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use tbrdma_lab::{Lab, Options};

/// Kernel series of the guests.
const KERNEL: &str = "7.3";
/// Repetitions, unless told otherwise.
const RUNS: u32 = 5;
/// That a run should take.
const SECONDS: f64 = 0.5;
/// The same with `--quick`.
const QUICK_SECONDS: f64 = 0.2;

/// What to measure, and where the results go.
#[derive(Args)]
pub(crate) struct Arguments {
    /// Repetitions of everything: 5, or 1 with --quick.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100))]
    runs: Option<u32>,
    /// Short runs of a few figures, to see that measuring works.
    #[arg(long, conflicts_with = "full")]
    quick: bool,
    /// Every size with every operation in every direction.
    #[arg(long)]
    full: bool,
    /// Only figures with these names, such as "latency send 64 B"; `*` stands for anything. May be given several times.
    #[arg(long, value_name = "NAME")]
    only: Vec<String>,
    /// Only at one place.
    #[arg(long, value_enum)]
    place: Option<PlaceArgument>,
    /// List the figures' names instead of measuring.
    #[arg(long)]
    list: bool,
    /// Write everything to this file: a list of {figure, candidate, unit, median, p99, runs, p99_runs}.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Write docs/benchmarks.md anew.
    #[arg(long, conflicts_with_all = ["only", "place"])]
    docs: bool,
}

#[derive(Clone, Copy, ValueEnum)]
enum PlaceArgument {
    /// Two hosts and a cable.
    Cable,
    /// One host.
    Loopback,
}

/// Under which circumstances it was measured.
struct Scope {
    /// Release of the guests' kernel.
    kernel: String,
    runs: u32,
    /// Of the machine that emulates everything.
    processors: usize,
}

/// Measures, prints tables, and writes files.
pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    let extent = match (arguments.quick, arguments.full) {
        (true, _) => Extent::Quick,
        (_, true) => Extent::Full,
        _ => Extent::Usual,
    };
    let places: Vec<Place> = match arguments.place {
        Some(PlaceArgument::Cable) => vec![Place::Cable],
        Some(PlaceArgument::Loopback) => vec![Place::Loopback],
        None => Place::ALL.to_vec(),
    };
    let mut plan = Plan {
        figures: Vec::new(),
        runs: arguments
            .runs
            .unwrap_or(if arguments.quick { 1 } else { RUNS }),
        seconds: if arguments.quick {
            QUICK_SECONDS
        } else {
            SECONDS
        },
    };
    for place in places {
        let figures = figures(extent, place, &arguments.only);
        plan.figures.push((place, figures));
    }
    for wanted in &arguments.only {
        let mut all = plan.figures.iter().flat_map(|(_, figures)| figures);
        ensure!(
            all.any(|figure| is_called(figure, wanted)),
            "no figure is called {wanted}; `cargo xtask bench --list` shows the names, with --full all of them"
        );
    }
    plan.figures.retain(|(_, figures)| !figures.is_empty());
    if arguments.list {
        list(&plan);
        return Ok(());
    }
    if let Some(file) = &arguments.json {
        // Not only after twenty minutes.
        fs::write(file, "[]\n").with_context(|| format!("cannot write {}", file.display()))?;
    }
    let start = Instant::now();
    let mut results = Results::default();
    let measured = everywhere(&plan, &mut results);
    if let Some(file) = &arguments.json {
        // What there is, also if something has failed.
        fs::write(file, results.json()?)
            .with_context(|| format!("cannot write {}", file.display()))?;
    }
    let kernel = measured?;
    print(&results, start.elapsed());
    if arguments.docs {
        let scope = Scope {
            kernel,
            runs: plan.runs,
            processors: std::thread::available_parallelism()?.get(),
        };
        let page = build::repository().join("docs/benchmarks.md");
        fs::write(&page, docs::page(&results, &scope))
            .with_context(|| format!("cannot write {}", page.display()))?;
        println!("wrote {}", page.display());
    }
    Ok(())
}

/// The figures of an extent, or those of them that are wanted.
fn figures(extent: Extent, place: Place, only: &[String]) -> Vec<Figure> {
    let mut figures = figure::figures(extent, place);
    figures.retain(|figure| only.is_empty() || only.iter().any(|wanted| is_called(figure, wanted)));
    figures
}

fn is_called(figure: &Figure, wanted: &str) -> bool {
    glob_match::glob_match(wanted, &figure.to_string())
}

/// Prints the names of all figures, each once.
fn list(plan: &Plan) {
    let mut seen = Vec::new();
    for figure in plan.figures.iter().flat_map(|(_, figures)| figures) {
        if !seen.contains(figure) {
            seen.push(*figure);
            println!("{figure}");
        }
    }
}

/// Measures at all these places; returns the kernel's release.
fn everywhere(plan: &Plan, results: &mut Results) -> Result<String> {
    let all = candidate::all();
    let at = |place: Place| -> Vec<&dyn Candidate> {
        all.iter()
            .map(|candidate| &**candidate)
            .filter(|candidate| candidate.place() == place)
            .collect()
    };
    let steps = plan
        .figures
        .iter()
        .map(|(place, figures)| plan.steps(figures, &at(*place)));
    let bar = progress(steps.sum());
    stage(
        &bar,
        "making the packages and installing them into a Debian 13 system",
    );
    let fabric = build::fabric()?;
    let root = package::layer::guest_with_packages()?;
    let mut kernel = String::new();
    for (place, figures) in &plan.figures {
        let mut options = Options {
            kernel: KERNEL.to_owned(),
            root: Some(root.clone()),
            ..Options::default()
        };
        match place {
            Place::Cable => options.fabric = Some(fabric.clone()),
            Place::Loopback => {
                options.hosts = 1;
                options.cables = 0;
                options.counting = true;
            }
        }
        stage(
            &bar,
            match place {
                Place::Cable => "booting two hosts, joined by a cable",
                Place::Loopback => "booting one host",
            },
        );
        let mut lab = Lab::up(&options)?;
        kernel = lab.kernel().to_owned();
        let outcome = measure::measure(&lab, &at(*place), plan, figures, &bar, results)
            .and_then(|()| lab.check(&[]));
        if outcome.is_err() {
            save_logs(&lab, &build::target().join("bench-logs"));
        }
        outcome?;
    }
    bar.finish_and_clear();
    Ok(kernel)
}

fn progress(steps: u64) -> ProgressBar {
    let bar = ProgressBar::new(steps);
    let template = "{elapsed_precise} {wide_bar} {pos}/{len}  {msg:40}";
    if let Ok(style) = ProgressStyle::with_template(template) {
        bar.set_style(style);
    }
    bar.enable_steady_tick(Duration::from_secs(1));
    bar
}

fn save_logs(lab: &Lab, to: &Path) {
    match lab.save_logs(to) {
        Ok(()) => eprintln!("the guests' logs are in {}", to.display()),
        Err(error) => eprintln!("the guests' logs could not be saved: {error:#}"),
    }
}

fn print(results: &Results, took: Duration) {
    for place in Place::ALL {
        let tables = [results.figures(place), results.counts(place)];
        for table in tables.into_iter().flatten() {
            print!("\n{table}");
        }
    }
    if let Some(table) = results.targets() {
        print!("\n{table}");
    }
    if let Some(line) = results.noise_line() {
        println!("\n  {line}");
    }
    println!(
        "\n  Emulated computers: compare figures with each other, not with a real cable's. It took {} s.",
        took.as_secs()
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_chosen_by_name() {
        let only = |names: &[&str]| {
            let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
            figures(Extent::Full, Place::Cable, &names).len()
        };
        assert_eq!(only(&["latency write 64 B"]), 1);
        // Of each operation and of a stream: two bytes, 64 and 4 KiB; two with events.
        assert_eq!(only(&["latency*"]), 14);
        assert_eq!(only(&["latency write 65 B"]), 0);
        assert!(only(&[]) > 14);
    }
}
