//! `cargo xtask package`: the Debian packages of the module, the provider and the tools.
//!
//! What goes into each package is described by the files in `packaging/deb` (see the README there). Two
//! inputs are not in the repository: the compiled programs, and the `rust/` trees of the kernel series that
//! the module supports, taken from Debian's `linux-source-*` packages.
//!
//! Equal inputs give equal packages: all times are those of the last commit that touched the inputs (or
//! `SOURCE_DATE_EPOCH`).

mod deb;
pub mod install;
pub mod layer;
mod programs;
mod recipe;
mod rust_tree;

use anyhow::{bail, Context, Result};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use tbrdma_lab::command::describe;

/// Kernel series whose `rust/` tree the DKMS package carries.
pub const SERIES: &[&str] = &["7.2", "7.3"];

/// The packages in the order in which they are made.
const PACKAGES: &[&str] = &[
    "tbrdma-dkms",
    "ibverbs-provider-tbrdma",
    "tbrdma-tools",
    "tbrdma",
];

/// The one version number: that of the workspace.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");

/// Where things are and what to use instead of what would be fetched.
#[derive(Debug, Clone)]
pub struct Options {
    /// The repository.
    pub repository: PathBuf,
    /// Where the packages come to lie. Older packages of the same names are removed.
    pub out: PathBuf,
    /// Kept between runs: compiled programs, downloaded kernel sources.
    pub cache: PathBuf,
    /// A folder with `SERIES.tar.xz` to use instead of fetching kernel sources.
    pub trees: Option<PathBuf>,
}

impl Options {
    /// The usual places: packages in `target/package`, everything that is kept in `target/package-cache`.
    pub fn new(repository: &Path) -> Self {
        let target = std::env::var_os("CARGO_TARGET_DIR")
            .map_or_else(|| repository.join("target"), PathBuf::from);
        Self {
            repository: repository.to_owned(),
            out: target.join("package"),
            cache: target.join("package-cache"),
            trees: None,
        }
    }
}

/// Makes all packages and returns their files.
///
/// # Errors
///
/// When a program does not compile, a kernel source cannot be fetched, or a package cannot be written; the
/// error says which.
pub fn package(options: &Options) -> Result<Vec<PathBuf>> {
    let epoch = source_date(&options.repository)?;
    let trees = match &options.trees {
        Some(dir) => rust_tree::check(dir)?,
        None => rust_tree::fetch(&options.repository, &options.cache.join("rust-trees"))?,
    };
    let programs = programs::build(&options.repository, &options.cache.join("programs"))?;

    std::fs::create_dir_all(&options.out)
        .with_context(|| format!("cannot make {}", options.out.display()))?;
    for old in options.out.read_dir()? {
        let old = old?.path();
        if old.extension().is_some_and(|e| e == "deb") {
            std::fs::remove_file(&old)?;
        }
    }

    let mut variables = BTreeMap::from([
        ("VERSION", VERSION.to_owned()),
        ("BUILD", path_text(&programs)?),
        ("TREES", path_text(&trees)?),
        ("DATE", date_text(epoch)?),
    ]);
    let mut debs = Vec::new();
    for name in PACKAGES {
        let recipe = recipe::Recipe::read(&options.repository, name)?;
        let stage = options.cache.join("stage").join(name);
        let deb = deb::build(&recipe, &mut variables, &stage, &options.out, epoch)
            .with_context(|| format!("cannot make the package {name}"))?;
        debs.push(deb);
    }
    Ok(debs)
}

fn path_text(path: &Path) -> Result<String> {
    let text = path
        .to_str()
        .with_context(|| format!("{} is not UTF-8", path.display()))?;
    if text.contains(char::is_whitespace) {
        bail!("{text} contains spaces, which the lists of files in packaging/deb cannot express");
    }
    Ok(text.to_owned())
}

/// What goes into packages: a commit that touches nothing of this leaves them as they are.
const INPUTS: &[&str] = &[
    "Cargo.lock",
    "Cargo.toml",
    "cli",
    "dkms.conf",
    "docs/parameters.md",
    "kmod",
    "libibverbs.d",
    "modprobe.d",
    "packaging",
    "proto",
    "provider",
    "uapi",
    "udev",
];

/// Seconds since 1970 that stand for every file: `SOURCE_DATE_EPOCH`, else the time of the last commit
/// that touched [`INPUTS`].
fn source_date(repository: &Path) -> Result<u64> {
    if let Ok(text) = std::env::var("SOURCE_DATE_EPOCH") {
        return text
            .parse()
            .context("SOURCE_DATE_EPOCH is not a number of seconds");
    }
    let text = output(
        Command::new("git")
            .current_dir(repository)
            .args(["log", "-1", "--format=%ct", "--"])
            .args(INPUTS),
    )
    .context("the time of the last commit is not known; set SOURCE_DATE_EPOCH")?;
    text.trim()
        .parse()
        .context("git gave no commit time; set SOURCE_DATE_EPOCH")
}

/// As in the last line of a Debian changelog entry.
fn date_text(epoch: u64) -> Result<String> {
    let text = output(Command::new("date").env("LC_ALL", "C").args([
        "--utc",
        "--rfc-email",
        &format!("--date=@{epoch}"),
    ]))?;
    Ok(text.trim().to_owned())
}

/// Runs a program to its end; its errors stay on our standard error.
pub(crate) fn run(command: &mut Command) -> Result<()> {
    let status = command.status().with_context(|| not_started(command))?;
    if !status.success() {
        bail!("{} failed ({status})", describe(command));
    }
    Ok(())
}

/// Runs a program to its end and returns what it printed.
pub(crate) fn output(command: &mut Command) -> Result<String> {
    let out = command.output().with_context(|| not_started(command))?;
    if !out.status.success() {
        bail!(
            "{} failed ({}): {}",
            describe(command),
            out.status,
            String::from_utf8_lossy(&out.stderr).trim()
        );
    }
    String::from_utf8(out.stdout).with_context(|| format!("{} printed no text", describe(command)))
}

fn not_started(command: &Command) -> String {
    format!(
        "cannot start {}; is it installed?",
        command.get_program().to_string_lossy()
    )
}
