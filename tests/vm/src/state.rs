//! What is written down of labs, so that another run of the program can use or end them.
//!
//! Each lab has a folder, with a file that names its processes from the moment they start. So what
//! a killed program left behind is found and ended by the next one.

use crate::cache::{remove, Cache};
use crate::lab::Lab;
use anyhow::{Context, Result};
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// A folder without a readable state file is somebody's who has just made it, up to this age.
const JUST_MADE: Duration = Duration::from_secs(600);

/// Where the folders of labs are.
pub(crate) fn runs(cache: &Cache) -> Result<PathBuf> {
    let dir = cache.dir().join("run");
    fs::create_dir_all(&dir).with_context(|| format!("cannot make {}", dir.display()))?;
    Ok(dir)
}

/// Writes down what a lab consists of at present.
pub(crate) fn save(lab: &Lab) -> Result<()> {
    let file = lab.dir.join("lab.json");
    let fresh = lab.dir.join("lab.json.new");
    fs::write(&fresh, serde_json::to_string_pretty(lab)?)
        .and_then(|()| fs::rename(&fresh, &file))
        .with_context(|| format!("cannot write {}", file.display()))
}

fn load(dir: &Path) -> Option<Lab> {
    serde_json::from_str(&fs::read_to_string(dir.join("lab.json")).ok()?).ok()
}

fn folders(cache: &Cache) -> Result<Vec<PathBuf>> {
    let mut folders: Vec<PathBuf> = fs::read_dir(runs(cache)?)?
        .flatten()
        .map(|entry| entry.path())
        .collect();
    folders.sort();
    Ok(folders)
}

/// The lab that was left running on purpose, if there is one.
pub(crate) fn detached(cache: &Cache) -> Result<Option<Lab>> {
    Ok(folders(cache)?
        .iter()
        .filter_map(|dir| load(dir))
        .find(|lab| lab.detached && lab.has_guest()))
}

/// Ends what programs left behind that are no more. The detached lab stays if it works.
pub(crate) fn sweep(cache: &Cache) -> Result<()> {
    for dir in folders(cache)? {
        match load(&dir) {
            Some(lab) if lab.owner.is_alive() || (lab.detached && lab.has_guest()) => {}
            Some(mut lab) => lab.end(),
            None => {
                let age = fs::metadata(&dir).and_then(|meta| meta.modified());
                let old = age.is_ok_and(|t| t.elapsed().is_ok_and(|age| age > JUST_MADE));
                if old {
                    remove(&dir)?;
                }
            }
        }
    }
    Ok(())
}
