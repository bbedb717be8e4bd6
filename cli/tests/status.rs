//! `tbrdma status` against trees of sysfs files as machines have them.
//!
//! A fixture `NAME.sys` holds files, each after a line `FILE path`. `NAME.txt` is what the command
//! has to print; run with `BLESS=1` to write it anew, and read the difference.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures")
}

/// Lays the files of a fixture out below `root`.
fn lay_out(name: &str, root: &Path) {
    let text = fs::read_to_string(fixtures().join(name).with_extension("sys")).unwrap();
    for file in text.split("\nFILE ").skip(1) {
        let (path, content) = file.split_once('\n').unwrap_or((file, ""));
        let path = root.join(path.trim_start_matches('/'));
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, format!("{content}\n")).unwrap();
    }
}

fn status(name: &str, options: &[&str]) -> Output {
    let root = tempfile::tempdir().unwrap();
    lay_out(name, root.path());
    Command::new(env!("CARGO_BIN_EXE_tbrdma"))
        .arg("status")
        .args(options)
        .arg("--root")
        .arg(root.path())
        .output()
        .unwrap()
}

fn check(name: &str, code: i32) {
    let output = status(name, &[]);
    let text = String::from_utf8(output.stdout).unwrap();
    let expected = fixtures().join(name).with_extension("txt");
    if std::env::var_os("BLESS").is_some() {
        fs::write(&expected, &text).unwrap();
    }
    assert_eq!(text, fs::read_to_string(expected).unwrap());
    assert_eq!(String::from_utf8(output.stderr).unwrap(), "");
    assert_eq!(output.status.code(), Some(code));
}

#[test]
fn connected() {
    check("connected", 0);
}

#[test]
fn no_debugfs() {
    check("no-debugfs", 0);
}

#[test]
fn no_cable() {
    check("no-cable", 0);
}

#[test]
fn other_host_without_tbrdma() {
    check("other-host-without", 0);
}

#[test]
fn hello_under_way() {
    check("greeting", 0);
}

#[test]
fn module_not_loaded() {
    check("not-loaded", 3);
}

#[test]
fn state_file_of_a_newer_module() {
    let output = status("bad-state", &[]);
    let error = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(
        error.contains("kernel/debug/tbrdma/state is not as expected"),
        "{error}"
    );
    assert!(error.contains("line 3: rails=one is no number"), "{error}");
}

#[test]
fn json_holds_the_same() {
    let output = status("connected", &["--json"]);
    let json: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(json["device"]["port"]["state"], "ACTIVE");
    assert_eq!(json["device"]["port"]["lanes"], 2);
    assert_eq!(json["device"]["gids"].as_array().unwrap().len(), 1);
    assert_eq!(json["device"]["gids"][0]["kind"], "RoCE v2");
    assert_eq!(json["peers"][0]["up"], true);
    assert_eq!(json["links"][0]["state"], "ready");
    assert_eq!(json["links"][0]["rails"][0]["retransmits"], 3);
    assert_eq!(json["links"][0]["rails"][0]["counters"]["naks_received"], 1);
    assert_eq!(json["cables"][0]["tbrdma"], true);
    assert_eq!(json["notes"].as_array().unwrap().len(), 0);
}

#[test]
fn json_without_a_device_says_so() {
    let output = status("not-loaded", &["--json"]);
    assert_eq!(output.status.code(), Some(3));
    let json: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert!(json["device"].is_null());
    assert!(json["notes"][0]
        .as_str()
        .unwrap()
        .contains("modprobe tbrdma"));
}
