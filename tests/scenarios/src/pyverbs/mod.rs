//! rdma-core's own tests of its Python binding, each with the outcome that `expected.txt` names: with
//! the guests' userspace, and with that of Debian sid, for which `sid.txt` says what differs.

mod table;

use crate::bench::wait_for_port;
use crate::{stock, Bench};
use anyhow::{ensure, Context, Result};
use std::path::{Path, PathBuf};
use std::time::Duration;
use table::{Rule, Table};
use tbrdma_lab::cache::{self, Cache, Key};
use tbrdma_lab::source::{self, Source};
use tbrdma_lab::{image, weekly, Lab};

/// Against hanging only.
const LIMIT: Duration = Duration::from_secs(400);

/// How each test has to end.
const EXPECTED: &str = include_str!("expected.txt");

/// What is otherwise on sid.
const ON_SID: &str = include_str!("sid.txt");

/// Runs the suite in a guest.
const RUN: &str = include_str!("run.py");

/// Runs a command with sid's files in a guest.
const CHROOT: &str = include_str!("chroot.sh");

/// Where the suite lies in the guest.
const FOLDER: &str = "/run/pyverbs";

/// Has the suite as its source has it.
const PACKAGE: &str = "python3-pyverbs";

/// What the suite needs of sid: the files that every system has, and the programs that it starts.
const SID_PACKAGES: [&str; 5] = ["base-files", "coreutils", "dash", "iproute2", PACKAGE];

/// With the guests' userspace.
pub(crate) fn run(bench: &mut Bench) -> Result<()> {
    let source = Source::of(bench.root(), PACKAGE)?;
    let suite = source.folder(&Cache::open()?, source::GUEST, "tests")?;
    let table = Table::parse(EXPECTED).context("expected.txt")?;
    with_suite(bench, &suite, |lab| {
        compare(lab, "", &table, source.upstream())
    })
}

/// With sid's userspace in a chroot, on the guests' kernel and with the same provider.
pub(crate) fn sid(bench: &mut Bench) -> Result<()> {
    let on_top = Table::parse(ON_SID).context("sid.txt")?;
    let table = Table::parse(EXPECTED).context("expected.txt")?;
    let table = table.with(on_top).context("sid.txt")?;
    let sid = Sid::get(&Cache::open()?)?;
    with_suite(bench, &sid.suite, |lab| {
        lab.access("a")?
            .push(&sid.image, &format!("{FOLDER}/sid.image"))?;
        push(lab, "chroot.sh", CHROOT)?;
        lab.run("a", &format!("mkdir {FOLDER}/sid"))?;
        let command =
            format!("unshare --mount --propagation private sh chroot.sh sid.image {FOLDER}/sid");
        compare(lab, &command, &table, sid.source.upstream())
    })
}

/// What is taken from sid.
struct Sid {
    source: Source,
    /// Folder with the suite.
    suite: PathBuf,
    /// The userspace, as a file system.
    image: PathBuf,
}

impl Sid {
    fn get(cache: &Cache) -> Result<Self> {
        let suite = |source: &Source| source.folder(cache, source::SID, "tests");
        // The archive has the suite that matches only until the next upload.
        let root = weekly::files(cache, "pyverbs", "sid", &SID_PACKAGES, |root| {
            suite(&Source::of(root, PACKAGE)?).map(drop)
        })?;
        let source = Source::of(&root, PACKAGE)?;
        let key = Key::default().with(cache::content_of(&root));
        Ok(Self {
            suite: suite(&source)?,
            image: image::packed(cache, "pyverbs-sid", &root, key)?,
            source,
        })
    }
}

/// Calls `compare` while the suite lies in host a, and both hosts have addresses.
fn with_suite(
    bench: &mut Bench,
    suite: &Path,
    compare: impl FnOnce(&Lab) -> Result<()>,
) -> Result<()> {
    let lab = bench.pair()?;
    wait_for_port(lab, "ACTIVE")?;
    stock::addresses(lab)?;
    lab.run("a", &format!("rm -rf {FOLDER} && mkdir {FOLDER}"))?;
    lab.access("a")?.push(suite, &format!("{FOLDER}/tests"))?;
    push(lab, "run.py", RUN)?;
    let compared = compare(lab);
    for host in ["a", "b"] {
        lab.run(host, "ip -4 address flush dev tbrdma0")?;
    }
    lab.run("a", &format!("rm -r {FOLDER}; sysctl -q vm.nr_hugepages=0"))?;
    compared
}

/// Puts a file beside the suite.
fn push(lab: &Lab, name: &str, content: &str) -> Result<()> {
    let file = lab.dir().join(name);
    std::fs::write(&file, content)?;
    lab.access("a")?.push(&file, &format!("{FOLDER}/{name}"))
}

/// Runs the suite, of this version, by `command`.
fn compare(lab: &Lab, command: &str, table: &Table, version: &str) -> Result<()> {
    // Tests that want large pages are to say what else they miss.
    lab.run("a", "sysctl -q vm.nr_hugepages=8")?;
    let left_out = table.left_out.join(" ");
    let suite = format!(
        "cd {FOLDER} && {command} python3 {FOLDER}/run.py {FOLDER} {FOLDER}/results {left_out} \
         -- --dev tbrdma0 --port 1 --gid 0 > said 2>&1"
    );
    let ran = lab.run_for("a", &suite, LIMIT);
    let said = || lab.run("a", &format!("tail -n 200 {FOLDER}/said"));
    if let Err(error) = ran {
        return Err(error.context(format!("the suite said last:\n{}", said()?)));
    }
    let written = lab.run("a", &format!("cat {FOLDER}/results"))?;
    let outcomes = table::outcomes(&written)?;
    let rule = table.rule(version);
    let differences = table.differences(&outcomes, rule);
    ensure!(
        differences.is_empty(),
        "not as the list has it:\n{}\nthe suite said last:\n{}",
        differences.join("\n"),
        said()?
    );
    if rule == Rule::Newer {
        let changed = table.differences(&outcomes, Rule::Exact);
        println!(
            "rdma-core {version} is newer than the list; what differs is no failure:\n{}",
            changed.join("\n")
        );
    }
    Ok(())
}
