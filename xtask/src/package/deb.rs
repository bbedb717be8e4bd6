//! Writing one `.deb` with `dpkg-deb`.

use super::recipe::{substitute, Entry, Recipe};
use super::{output, programs, run};
use anyhow::{bail, ensure, Context, Result};
use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{symlink, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Lays the package out under `stage` and packs it into `out`. `epoch` is the time of all files.
pub(super) fn build(
    recipe: &Recipe,
    variables: &mut BTreeMap<&'static str, String>,
    stage: &Path,
    out: &Path,
    epoch: u64,
) -> Result<PathBuf> {
    if stage.exists() {
        fs::remove_dir_all(stage).with_context(|| format!("cannot empty {}", stage.display()))?;
    }
    let control_dir = stage.join("DEBIAN");
    make_dir(&control_dir)?;

    let mut version_files = Vec::new();
    for entry in &recipe.entries {
        place(recipe, entry, variables, stage, &mut version_files)?;
    }
    // The only file in the packages that states the version by itself
    for file in version_files {
        let text = substitute(&fs::read_to_string(&file)?, variables)?;
        fs::write(&file, text)?;
    }
    document(recipe, variables, stage)?;

    variables.insert("LIBC", programs::libc_dependency(stage)?);
    let mut control = substitute(&recipe.control, variables)?;
    control.insert_str(
        control
            .find("Maintainer:")
            .context("control has no Maintainer")?,
        &format!("Installed-Size: {}\n", installed_kib(stage)?),
    );
    write(&control_dir.join("control"), &control, 0o644)?;
    for (name, text, mode) in &recipe.control_files {
        write(
            &control_dir.join(name),
            &substitute(text, variables)?,
            *mode,
        )?;
    }
    let sums = checksums(stage)?;
    if !sums.is_empty() {
        write(&control_dir.join("md5sums"), &sums, 0o644)?;
    }

    run(Command::new("dpkg-deb")
        .env("SOURCE_DATE_EPOCH", epoch.to_string())
        .args(["--root-owner-group", "-Zxz", "--build"])
        .arg(stage)
        .arg(out)
        .stdout(std::process::Stdio::null()))?;
    let arch = field(&control, "Architecture")?;
    let deb = out.join(format!(
        "{}_{}_{arch}.deb",
        recipe.name,
        field(&control, "Version")?
    ));
    ensure!(deb.exists(), "dpkg-deb did not write {}", deb.display());
    Ok(deb)
}

fn field<'a>(control: &'a str, name: &str) -> Result<&'a str> {
    control
        .lines()
        .find_map(|l| l.strip_prefix(name)?.strip_prefix(": "))
        .with_context(|| format!("control has no {name}"))
}

fn place(
    recipe: &Recipe,
    entry: &Entry,
    variables: &BTreeMap<&'static str, String>,
    stage: &Path,
    version_files: &mut Vec<PathBuf>,
) -> Result<()> {
    match entry {
        Entry::Link {
            destination,
            target,
        } => {
            let link = stage.join(substitute(destination, variables)?);
            make_dir(link.parent().context("a link needs a name")?)?;
            symlink(target, &link).with_context(|| format!("cannot make {}", link.display()))
        }
        Entry::Copy {
            source,
            destination,
            mode,
            optional,
        } => {
            let from = recipe.repository.join(substitute(source, variables)?);
            let to = stage.join(substitute(destination, variables)?);
            if !from.exists() {
                if *optional {
                    return Ok(());
                }
                bail!("{} does not exist", from.display());
            }
            if from.is_dir() {
                return copy_tree(&from, &to);
            }
            copy_file(&from, &to, *mode)?;
            if source == "dkms.conf" {
                version_files.push(to);
            }
            Ok(())
        }
    }
}

/// Copies a folder without hidden files.
fn copy_tree(from: &Path, to: &Path) -> Result<()> {
    make_dir(to)?;
    for item in from
        .read_dir()
        .with_context(|| format!("cannot read {}", from.display()))?
    {
        let item = item?;
        if item.file_name().to_string_lossy().starts_with('.') {
            continue;
        }
        let target = to.join(item.file_name());
        if item.path().is_dir() {
            copy_tree(&item.path(), &target)?;
        } else {
            copy_file(&item.path(), &target, None)?;
        }
    }
    Ok(())
}

fn copy_file(from: &Path, to: &Path, mode: Option<u32>) -> Result<()> {
    make_dir(to.parent().context("a file needs a name")?)?;
    fs::copy(from, to)
        .with_context(|| format!("cannot copy {} to {}", from.display(), to.display()))?;
    let executable = fs::metadata(from)?.permissions().mode() & 0o100 != 0;
    let mode = mode.unwrap_or(if executable { 0o755 } else { 0o644 });
    fs::set_permissions(to, fs::Permissions::from_mode(mode))?;
    Ok(())
}

/// Changelog, copyright and lintian's overrides.
fn document(
    recipe: &Recipe,
    variables: &BTreeMap<&'static str, String>,
    stage: &Path,
) -> Result<()> {
    let doc = stage.join("usr/share/doc").join(&recipe.name);
    make_dir(&doc)?;
    write(
        &doc.join("copyright"),
        &substitute(&recipe.copyright, variables)?,
        0o644,
    )?;
    let changelog = doc.join("changelog");
    write(
        &changelog,
        &substitute(&recipe.changelog, variables)?,
        0o644,
    )?;
    gzip(&changelog)?;
    let man = stage.join("usr/share/man");
    if man.exists() {
        for section in man.read_dir()? {
            for page in section?.path().read_dir()? {
                gzip(&page?.path())?;
            }
        }
    }
    if let Some(text) = &recipe.lintian_overrides {
        let dir = stage.join("usr/share/lintian/overrides");
        make_dir(&dir)?;
        write(&dir.join(&recipe.name), text, 0o644)?;
    }
    Ok(())
}

fn gzip(file: &Path) -> Result<()> {
    run(Command::new("gzip").args(["-9", "-n", "--force"]).arg(file))
}

fn checksums(stage: &Path) -> Result<String> {
    let mut files: Vec<String> = Vec::new();
    for path in walk(stage)? {
        let relative = path.strip_prefix(stage)?;
        if !relative.starts_with("DEBIAN") && !path.is_symlink() {
            files.push(
                relative
                    .to_str()
                    .context("file name is not UTF-8")?
                    .to_owned(),
            );
        }
    }
    // Files in /etc are checked by dpkg itself
    files.retain(|f| !f.starts_with("etc/"));
    if files.is_empty() {
        return Ok(String::new());
    }
    files.sort();
    output(
        Command::new("md5sum")
            .current_dir(stage)
            .arg("--")
            .args(&files),
    )
}

/// As dpkg-gencontrol counts it: each file in whole KiB, everything else one.
fn installed_kib(stage: &Path) -> Result<u64> {
    let mut sum = 0;
    for path in walk(stage)? {
        if path.starts_with(stage.join("DEBIAN")) {
            continue;
        }
        let data = path.symlink_metadata()?;
        sum += if data.is_file() {
            data.len().div_ceil(1024)
        } else {
            1
        };
    }
    Ok(sum)
}

/// All files and links under a folder.
pub(super) fn walk(dir: &Path) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for item in dir
        .read_dir()
        .with_context(|| format!("cannot read {}", dir.display()))?
    {
        let path = item?.path();
        if path.is_dir() && !path.is_symlink() {
            found.extend(walk(&path)?);
        } else {
            found.push(path);
        }
    }
    Ok(found)
}

/// Makes a folder and those above it, readable to all whatever the umask.
fn make_dir(dir: &Path) -> Result<()> {
    if dir.is_dir() {
        return Ok(());
    }
    if let Some(parent) = dir.parent() {
        make_dir(parent)?;
    }
    fs::create_dir(dir).with_context(|| format!("cannot make {}", dir.display()))?;
    fs::set_permissions(dir, fs::Permissions::from_mode(0o755))?;
    Ok(())
}

fn write(path: &Path, text: &str, mode: u32) -> Result<()> {
    fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))?;
    fs::set_permissions(path, fs::Permissions::from_mode(mode))?;
    Ok(())
}
