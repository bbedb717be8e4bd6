//! Measuring all candidates of a place, interleaved.

use super::candidate::{Candidate, Job, Load, Place, Sample};
use super::counts::{Count, Look};
use super::ends;
use super::figure::{Figure, Per};
use super::pace::Pace;
use super::results::{Results, What};
use anyhow::{ensure, Context, Result};
use indicatif::ProgressBar;
use tbrdma_lab::Lab;
use tbrdma_scenarios::facts;

/// What is to be measured.
pub(crate) struct Plan {
    /// At each place.
    pub(crate) figures: Vec<(Place, Vec<Figure>)>,
    pub(crate) runs: u32,
    /// That a run should take, roughly.
    pub(crate) seconds: f64,
}

impl Plan {
    /// Runs of these candidates, those for system calls included.
    pub(crate) fn steps(&self, figures: &[Figure], candidates: &[&dyn Candidate]) -> u64 {
        let load = Load {
            count: 64,
            seconds: 1,
        };
        let of = |figure: &Figure| {
            candidates
                .iter()
                .filter(|candidate| candidate.job(figure, load).is_some())
                .count() as u64
        };
        let traced = figures.iter().filter(|figure| figure.counted().is_some());
        figures.iter().map(of).sum::<u64>() * u64::from(self.runs) + traced.map(of).sum::<u64>()
    }
}

/// Says what happens next, also where a bar cannot be drawn.
pub(crate) fn stage(bar: &ProgressBar, what: impl Into<String>) {
    let what = what.into();
    if bar.is_hidden() {
        eprintln!("[{:>4} s] {what}", bar.elapsed().as_secs());
    }
    bar.set_message(what);
}

/// A candidate that is set up.
struct Ready<'a> {
    candidate: &'a dyn Candidate,
    pace: Option<Pace>,
}

impl Ready<'_> {
    fn load(&self, figure: &Figure, seconds: f64) -> Load {
        Load {
            count: self.pace.map_or(1, |pace| pace.load(figure, seconds)),
            seconds: 1,
        }
    }
}

/// Sets the candidates up, measures these figures as planned, and adds them to `results`.
pub(crate) fn measure(
    lab: &Lab,
    candidates: &[&dyn Candidate],
    plan: &Plan,
    figures: &[Figure],
    bar: &ProgressBar,
    results: &mut Results,
) -> Result<()> {
    ends::prepare(lab)?;
    for candidate in candidates {
        stage(bar, format!("setting {} up", candidate.name()));
        candidate
            .set_up(lab)
            .with_context(|| format!("{} cannot be set up", candidate.name()))?;
    }
    let mut ready = Vec::new();
    for &candidate in candidates {
        stage(bar, format!("calibrating {}", candidate.name()));
        let pace = Pace::find(lab, candidate)?;
        ready.push(Ready { candidate, pace });
    }
    for repetition in 0..plan.runs {
        stage(
            bar,
            format!("repetition {} of {}", repetition + 1, plan.runs),
        );
        for figure in figures {
            for ready in &ready {
                one(lab, ready, figure, plan, bar, results)?;
            }
        }
        if repetition == 0 {
            for figure in figures {
                if let Some(per) = figure.counted() {
                    for ready in &ready {
                        system_calls(lab, ready, figure, per, bar, results)?;
                    }
                }
            }
        }
        ready.reverse();
    }
    for candidate in candidates {
        candidate
            .tear_down(lab)
            .with_context(|| format!("{} cannot be taken down", candidate.name()))?;
    }
    Ok(())
}

/// Measures a figure once, and counts around it.
fn one(
    lab: &Lab,
    ready: &Ready<'_>,
    figure: &Figure,
    plan: &Plan,
    bar: &ProgressBar,
    results: &mut Results,
) -> Result<()> {
    let Ready { candidate, .. } = *ready;
    let (name, place) = (candidate.name(), candidate.place());
    let Some(job) = candidate.job(figure, ready.load(figure, plan.seconds)) else {
        return Ok(());
    };
    bar.set_message(format!("{name}: {figure}"));
    let counted = figure.counted().filter(|_| place == Place::Cable);
    let (before, sample) = facts::until_measured(|| {
        let before = counted.map(|_| Look::now(lab, candidate)).transpose()?;
        let sample = sample(lab, place, &job)
            .with_context(|| format!("{name}: {figure}: {}", job.client))?;
        Ok((before, sample))
    })?;
    results.add(name, place, What::figure(*figure), sample.value, sample.p99);
    if let (Some(per), Some(before)) = (counted, before) {
        let counts = Look::now(lab, candidate)?.since(&before, figure, &sample, per);
        for (count, value) in counts {
            let what = What {
                figure: *figure,
                count: Some(count),
            };
            results.add(name, place, what, value, None);
        }
    }
    bar.inc(1);
    Ok(())
}

/// The client's system calls, without those of starting and ending: the difference of a short and a longer run.
fn system_calls(
    lab: &Lab,
    ready: &Ready<'_>,
    figure: &Figure,
    per: Per,
    bar: &ProgressBar,
    results: &mut Results,
) -> Result<()> {
    let Ready { candidate, .. } = *ready;
    let (name, place) = (candidate.name(), candidate.place());
    let short = ready.load(figure, 0.1);
    let long = Load {
        count: short.count * 4,
        seconds: short.seconds * 3,
    };
    let mut found = Vec::new();
    for load in [short, long] {
        let Some(job) = candidate.job(figure, load) else {
            return Ok(());
        };
        bar.set_message(format!("{name}: system calls of {figure}"));
        let context = format!("{name}: system calls of {figure}: {}", job.client);
        found.push(facts::until_measured(|| traced(lab, place, &job)).context(context)?);
    }
    let [(short, few), (long, many)] = found[..] else {
        return Ok(());
    };
    let parts = match per {
        Per::Mib => (long.bytes - short.bytes) / f64::from(1 << 20),
        Per::Message => long.messages - short.messages,
    };
    ensure!(
        parts > 0.0,
        "{name}: {figure}: the longer run moved no more than the shorter one"
    );
    let what = What {
        figure: *figure,
        count: Some(Count::SystemCalls),
    };
    let value = (many as f64 - few as f64) / parts;
    results.add(name, place, what, value.max(0.0), None);
    bar.inc(1);
    Ok(())
}

/// Runs a job, and reads what it printed.
pub(super) fn sample(lab: &Lab, place: Place, job: &Job) -> Result<Sample> {
    (job.read)(&ends::run(lab, place, job)?)
}

fn traced(lab: &Lab, place: Place, job: &Job) -> Result<(Sample, u64)> {
    let (printed, calls) = ends::run_traced(lab, place, job)?;
    Ok(((job.read)(&printed)?, facts::system_calls(&calls)?))
}
