//! rdma-core's own tests of its Python binding, each with the outcome that `expected.txt` names.

mod table;

use crate::bench::wait_for_port;
use crate::{stock, Bench};
use anyhow::{ensure, Context, Result};
use std::time::Duration;
use table::Table;
use tbrdma_lab::cache::Cache;
use tbrdma_lab::source::{self, Source};
use tbrdma_lab::Lab;

/// Against hanging only.
const LIMIT: Duration = Duration::from_secs(400);

/// How each test has to end.
const EXPECTED: &str = include_str!("expected.txt");

/// Runs the suite in a guest.
const RUN: &str = include_str!("run.py");

/// Where the suite lies in the guest.
const FOLDER: &str = "/run/pyverbs";

pub(crate) fn run(bench: &mut Bench) -> Result<()> {
    let source = Source::of(bench.root(), "python3-pyverbs")?;
    let suite = source.folder(&Cache::open()?, source::GUEST, "tests")?;
    let lab = bench.pair()?;
    wait_for_port(lab, "ACTIVE")?;
    stock::addresses(lab)?;
    lab.run("a", &format!("rm -rf {FOLDER} && mkdir {FOLDER}"))?;
    lab.access("a")?.push(&suite, &format!("{FOLDER}/tests"))?;
    let script = lab.dir().join("run.py");
    std::fs::write(&script, RUN)?;
    lab.access("a")?
        .push(&script, &format!("{FOLDER}/run.py"))?;
    let compared = compare(lab);
    for host in ["a", "b"] {
        lab.run(host, "ip -4 address flush dev tbrdma0")?;
    }
    lab.run("a", &format!("rm -r {FOLDER}; sysctl -q vm.nr_hugepages=0"))?;
    compared
}

fn compare(lab: &Lab) -> Result<()> {
    let table = Table::parse(EXPECTED).context("expected.txt")?;
    // Tests that want large pages are to say what else they miss.
    lab.run("a", "sysctl -q vm.nr_hugepages=8")?;
    let left_out = table.left_out.join(" ");
    let suite = format!(
        "cd {FOLDER} && python3 run.py {FOLDER} results {left_out} -- --dev tbrdma0 --port 1 --gid 0 > said 2>&1"
    );
    let ran = lab.run_for("a", &suite, LIMIT);
    let said = || lab.run("a", &format!("tail -n 200 {FOLDER}/said"));
    if let Err(error) = ran {
        return Err(error.context(format!("the suite said last:\n{}", said()?)));
    }
    let written = lab.run("a", &format!("cat {FOLDER}/results"))?;
    let differences = table.differences(&table::outcomes(&written)?);
    ensure!(
        differences.is_empty(),
        "not as expected.txt has it:\n{}\nthe suite said last:\n{}",
        differences.join("\n"),
        said()?
    );
    Ok(())
}
