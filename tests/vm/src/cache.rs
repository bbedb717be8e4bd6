//! What is expensive to make is kept outside the checkout, by content.
//!
//! An entry's name has a hash of everything that went into it. It is made in a temporary place and
//! renamed when it is complete, so that an entry that exists is whole. Two processes do not make
//! the same entry at once.

use anyhow::{Context, Result};
use nix::fcntl::{Flock, FlockArg};
use sha2::{Digest, Sha256};
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

/// Entries of a kind that are kept besides the one in use.
const KEEP: usize = 2;
/// Entries used within this time are kept in any case: somebody may be using them.
const YOUNG: Duration = Duration::from_secs(3600);

/// The cache.
#[derive(Clone, Debug)]
pub struct Cache {
    dir: PathBuf,
}

/// A hash of inputs.
#[derive(Default)]
pub struct Key(Sha256);

impl Key {
    /// Takes an input in; the parts do not run into each other.
    pub fn with(mut self, part: impl AsRef<[u8]>) -> Self {
        let part = part.as_ref();
        self.0.update((part.len() as u64).to_le_bytes());
        self.0.update(part);
        self
    }

    /// Takes a file's content in.
    pub fn with_file(self, path: &Path) -> Result<Self> {
        let content = fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
        Ok(self.with(content))
    }

    fn finish(self) -> String {
        self.0
            .finalize()
            .iter()
            .take(8)
            .map(|byte| format!("{byte:02x}"))
            .collect()
    }
}

impl Cache {
    /// `$TBRDMA_CACHE`, or `/var/cache/tbrdma`.
    pub fn open() -> Result<Self> {
        let dir = std::env::var_os("TBRDMA_CACHE")
            .map_or_else(|| PathBuf::from("/var/cache/tbrdma"), PathBuf::from);
        fs::create_dir_all(&dir).with_context(|| {
            format!(
                "cannot make the cache {}; set TBRDMA_CACHE to a folder that you may write",
                dir.display()
            )
        })?;
        Ok(Self { dir })
    }

    /// The folder itself.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// The entry of this kind with this key; `make` fills a fresh path if it is not there.
    pub fn entry(
        &self,
        kind: &str,
        key: Key,
        make: impl FnOnce(&Path) -> Result<()>,
    ) -> Result<PathBuf> {
        let name = format!("{kind}-{}", key.finish());
        let path = self.dir.join(&name);
        let lock = File::create(self.dir.join(format!("{name}.lock")))?;
        let _lock = Flock::lock(lock, FlockArg::LockExclusive)
            .map_err(|(_, error)| error)
            .with_context(|| format!("cannot lock {name} in the cache"))?;
        if path.exists() {
            touch(&path);
            return Ok(path);
        }
        let fresh = self.dir.join(format!("{name}.making"));
        remove(&fresh)?;
        let made = make(&fresh).with_context(|| format!("while making {kind}"));
        if made.is_err() {
            remove(&fresh)?;
        }
        made?;
        fs::rename(&fresh, &path)?;
        touch(&path);
        self.collect(kind, &name);
        self.sweep();
        Ok(path)
    }

    /// Removes what was being made by programs that are no more: nobody holds its lock. Failing to
    /// is no failure.
    fn sweep(&self) {
        let Ok(dir) = fs::read_dir(&self.dir) else {
            return;
        };
        for path in dir.flatten().map(|entry| entry.path()) {
            if path
                .extension()
                .is_none_or(|extension| extension != "making")
            {
                continue;
            }
            // Only the maker holds the lock; we hold it while we remove.
            let Ok(lock) = File::create(path.with_extension("lock")) else {
                continue;
            };
            if let Ok(_lock) = Flock::lock(lock, FlockArg::LockExclusiveNonblock) {
                let _ = remove(&path);
            }
        }
    }

    /// The entry of this kind with this key, if it was made before.
    pub fn find(&self, kind: &str, key: Key) -> Option<PathBuf> {
        let path = self.dir.join(format!("{kind}-{}", key.finish()));
        path.exists().then(|| {
            touch(&path);
            path
        })
    }

    /// Removes old entries of a kind. Failing to is no failure.
    fn collect(&self, kind: &str, present: &str) {
        let Ok(dir) = fs::read_dir(&self.dir) else {
            return;
        };
        let mut others: Vec<(SystemTime, PathBuf)> = dir
            .flatten()
            .filter(|entry| {
                let name = entry.file_name().to_string_lossy().into_owned();
                let hash = name
                    .strip_prefix(kind)
                    .and_then(|rest| rest.strip_prefix('-'));
                name != present
                    && hash
                        .is_some_and(|h| h.len() == 16 && h.bytes().all(|b| b.is_ascii_hexdigit()))
            })
            .filter_map(|entry| Some((used(&entry.path())?, entry.path())))
            .collect();
        others.sort();
        let excess = others.len().saturating_sub(KEEP);
        for (when, path) in others.into_iter().take(excess) {
            if when.elapsed().is_ok_and(|age| age > YOUNG) {
                let _ = remove(&path);
                let _ = fs::remove_file(path.with_extension("used"));
                let _ = fs::remove_file(path.with_extension("lock"));
            }
        }
    }
}

/// When an entry was last used. Its own time does not tell: roots have times of their own.
fn used(path: &Path) -> Option<SystemTime> {
    fs::metadata(path.with_extension("used"))
        .and_then(|m| m.modified())
        .ok()
}

/// What the content of an entry follows from: its name, wherever the cache lies.
pub fn content_of(entry: &Path) -> String {
    entry
        .file_name()
        .unwrap_or_default()
        .to_string_lossy()
        .into_owned()
}

fn touch(path: &Path) {
    let _ = File::create(path.with_extension("used"));
}

/// Removes a file or folder, if it is there. What a killed program left mounted below it is
/// unmounted first: it is not ours to remove.
pub fn remove(path: &Path) -> Result<()> {
    unmount_below(path)?;
    let result = match fs::symlink_metadata(path) {
        Err(_) => return Ok(()),
        Ok(meta) if meta.is_dir() => fs::remove_dir_all(path),
        Ok(_) => fs::remove_file(path),
    };
    result.with_context(|| format!("cannot remove {}", path.display()))
}

fn unmount_below(path: &Path) -> Result<()> {
    let table = fs::read_to_string("/proc/self/mountinfo").context("cannot read the mounts")?;
    for place in mounts_below(&table, path) {
        nix::mount::umount2(&place, nix::mount::MntFlags::MNT_DETACH)
            .with_context(|| format!("{} is mounted and stays so", place.display()))?;
    }
    Ok(())
}

/// The places at or below `path` where something is mounted, the innermost first; `table` is as in
/// proc_pid_mountinfo(5).
fn mounts_below(table: &str, path: &Path) -> Vec<PathBuf> {
    let mut places: Vec<PathBuf> = table
        .lines()
        .filter_map(|line| line.split(' ').nth(4))
        .map(|place| PathBuf::from(unescape(place)))
        .filter(|place| place.starts_with(path))
        .collect();
    // Later mounts lie over earlier ones.
    places.reverse();
    places
}

/// Resolves the octal escapes of white space and backslashes.
fn unescape(text: &str) -> String {
    let mut parts = text.split('\\');
    let mut plain = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let number = part.get(..3).and_then(|n| u8::from_str_radix(n, 8).ok());
        match (number, part.get(3..)) {
            (Some(byte), Some(rest)) => {
                plain.push(char::from(byte));
                plain.push_str(rest);
            }
            _ => {
                plain.push('\\');
                plain.push_str(part);
            }
        }
    }
    plain
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_mounted_below_is_told_from_inside_out() {
        let table = "22 1 0:5 / / rw shared:1 - ext4 /dev/vda rw\n\
                     30 22 0:6 / /c/a\\040b/proc rw - proc proc rw\n\
                     31 22 0:7 / /c/a rw - tmpfs none rw\n\
                     32 31 0:8 / /c/a/dev rw - tmpfs none rw\n";
        let below = |path: &str| mounts_below(table, Path::new(path));
        let places = |list: &[&str]| list.iter().map(PathBuf::from).collect::<Vec<_>>();
        assert_eq!(below("/c/a"), places(&["/c/a/dev", "/c/a"]));
        assert_eq!(below("/c/a b"), places(&["/c/a b/proc"]));
        assert_eq!(below("/c/ab"), places(&[]));
    }

    /// As a root file system whose maker was killed: what is mounted there must survive.
    #[test]
    fn what_is_mounted_is_not_removed_along() {
        if !nix::unistd::geteuid().is_root() {
            eprintln!("only root can mount: not tested");
            return;
        }
        let dir = tempfile::tempdir().unwrap();
        let (other, place) = (dir.path().join("other"), dir.path().join("x.making/dev"));
        fs::create_dir(&other).unwrap();
        fs::create_dir_all(&place).unwrap();
        fs::write(other.join("file"), "kept").unwrap();
        let bind = nix::mount::MsFlags::MS_BIND;
        nix::mount::mount(Some(&other), &place, None::<&str>, bind, None::<&str>).unwrap();
        remove(&dir.path().join("x.making")).unwrap();
        assert!(!place.exists());
        assert_eq!(fs::read(other.join("file")).unwrap(), b"kept");
    }

    #[test]
    fn an_entry_is_made_once_and_only_if_it_succeeds() {
        let dir = tempfile::tempdir().unwrap();
        let cache = Cache {
            dir: dir.path().to_owned(),
        };
        let key = || Key::default().with("x");
        assert!(cache
            .entry("thing", key(), |_| anyhow::bail!("no"))
            .is_err());
        let path = cache
            .entry("thing", key(), |p| Ok(fs::write(p, "1")?))
            .unwrap();
        let again = cache
            .entry("thing", key(), |_| panic!("made twice"))
            .unwrap();
        assert_eq!(path, again);
        let elsewhere = Path::new("/other").join(path.file_name().unwrap());
        assert_eq!(content_of(&path), content_of(&elsewhere));
        assert_eq!(fs::read(&path).unwrap(), b"1");
        assert_eq!(cache.find("thing", key()), Some(path));
        assert_eq!(cache.find("thing", key().with("y")), None);
    }

    #[test]
    fn what_a_killed_maker_left_is_removed_but_nothing_that_is_being_made() {
        let dir = tempfile::tempdir().unwrap();
        let cache = Cache {
            dir: dir.path().to_owned(),
        };
        let (left, being_made) = (dir.path().join("a-1.making"), dir.path().join("a-2.making"));
        for path in [&left, &being_made] {
            fs::write(path, "").unwrap();
        }
        let lock = File::create(dir.path().join("a-2.lock")).unwrap();
        let _lock = Flock::lock(lock, FlockArg::LockExclusive).unwrap();
        cache
            .entry("thing", Key::default().with("x"), |p| {
                Ok(fs::write(p, "1")?)
            })
            .unwrap();
        assert!(!left.exists());
        assert!(being_made.exists());
    }

    #[test]
    fn parts_of_a_key_do_not_run_into_each_other() {
        let ab_c = Key::default().with("ab").with("c").finish();
        assert_ne!(ab_c, Key::default().with("a").with("bc").finish());
        assert_eq!(ab_c, Key::default().with("ab").with("c").finish());
    }
}
