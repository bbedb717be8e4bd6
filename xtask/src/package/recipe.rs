//! A package as `packaging/deb/NAME` describes it.

use anyhow::{bail, Context, Result};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// Maintainer scripts and other control files that are copied as they are, with their mode.
const CONTROL_FILES: &[(&str, u32)] = &[
    ("preinst", 0o755),
    ("postinst", 0o755),
    ("prerm", 0o755),
    ("postrm", 0o755),
    ("conffiles", 0o644),
];

/// One line of `files`.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Entry {
    /// Copy a file or a whole folder. The mode applies to a file; without one it is 755 or 644, as in the source.
    Copy {
        source: String,
        destination: String,
        mode: Option<u32>,
        optional: bool,
    },
    /// A symbolic link.
    Link { destination: String, target: String },
}

/// Everything about one package.
pub(super) struct Recipe {
    pub(super) name: String,
    pub(super) repository: PathBuf,
    pub(super) control: String,
    pub(super) entries: Vec<Entry>,
    /// Name, text and mode.
    pub(super) control_files: Vec<(String, String, u32)>,
    pub(super) lintian_overrides: Option<String>,
    pub(super) changelog: String,
    pub(super) copyright: String,
}

impl Recipe {
    /// Reads the description of the package `name`.
    pub(super) fn read(repository: &Path, name: &str) -> Result<Self> {
        let common = repository.join("packaging/deb");
        let dir = common.join(name);
        let mut control_files = Vec::new();
        for (file, mode) in CONTROL_FILES {
            if let Some(text) = read_optional(&dir.join(file))? {
                control_files.push(((*file).to_owned(), text, *mode));
            }
        }
        Ok(Self {
            name: name.to_owned(),
            repository: repository.to_owned(),
            control: read(&dir.join("control"))?,
            entries: parse_files(&read(&dir.join("files"))?)
                .with_context(|| format!("in {}", dir.join("files").display()))?,
            control_files,
            lintian_overrides: read_optional(&dir.join("lintian-overrides"))?,
            changelog: read(&common.join("changelog"))?,
            copyright: read(&common.join("copyright"))?,
        })
    }
}

fn read(path: &Path) -> Result<String> {
    std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))
}

fn read_optional(path: &Path) -> Result<Option<String>> {
    if path.exists() {
        read(path).map(Some)
    } else {
        Ok(None)
    }
}

fn parse_files(text: &str) -> Result<Vec<Entry>> {
    let mut entries = Vec::new();
    for line in text.lines() {
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let words: Vec<&str> = line.split_whitespace().collect();
        let entry = match words[..] {
            [destination, "->", target] => Entry::Link {
                destination: destination.to_owned(),
                target: target.to_owned(),
            },
            [source, destination] => copy(source, destination, None),
            [source, destination, mode] => {
                let mode = u32::from_str_radix(mode, 8)
                    .with_context(|| format!("{mode} is no file mode in {line:?}"))?;
                copy(source, destination, Some(mode))
            }
            _ => bail!("{line:?} is neither SOURCE DESTINATION [MODE] nor DESTINATION -> TARGET"),
        };
        entries.push(entry);
    }
    Ok(entries)
}

fn copy(source: &str, destination: &str, mode: Option<u32>) -> Entry {
    let optional = source.starts_with('?');
    Entry::Copy {
        source: source.trim_start_matches('?').to_owned(),
        destination: destination.to_owned(),
        mode,
        optional,
    }
}

/// Replaces each `@NAME@`. A name that has no value is an error, so that none reaches a package.
pub(super) fn substitute(text: &str, variables: &BTreeMap<&str, String>) -> Result<String> {
    let mut result = text.to_owned();
    for (name, value) in variables {
        result = result.replace(&format!("@{name}@"), value);
    }
    for word in result.split(|c: char| !(c.is_ascii_uppercase() || c == '@' || c == '_')) {
        if word.len() > 2 && word.starts_with('@') && word.ends_with('@') {
            bail!("{word} has no value");
        }
    }
    Ok(result)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_every_kind_of_line() {
        let entries = parse_files("# nothing\n\na/b usr/b 755\n?c usr/c\nusr/d -> b\n").unwrap();
        assert_eq!(
            entries,
            [
                Entry::Copy {
                    source: "a/b".into(),
                    destination: "usr/b".into(),
                    mode: Some(0o755),
                    optional: false
                },
                Entry::Copy {
                    source: "c".into(),
                    destination: "usr/c".into(),
                    mode: None,
                    optional: true
                },
                Entry::Link {
                    destination: "usr/d".into(),
                    target: "b".into()
                },
            ]
        );
    }

    #[test]
    fn refuses_nonsense() {
        assert!(parse_files("alone").is_err());
        assert!(parse_files("a b 9x").is_err());
        assert!(parse_files("a b 755 more").is_err());
    }

    #[test]
    fn a_variable_without_value_is_an_error() {
        let variables = BTreeMap::from([("VERSION", "1.2".to_owned())]);
        assert_eq!(
            substitute("v@VERSION@, a@b.c", &variables).unwrap(),
            "v1.2, a@b.c"
        );
        assert!(substitute("@LIBC@", &variables).is_err());
    }
}
