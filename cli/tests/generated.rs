//! The manual page and the shell completions follow from the command line's definition; they are
//! in the repository so that packaging needs no tools. Run with `BLESS=1` to write them anew.

use clap::CommandFactory;
use clap_complete::{generate, Shell};
use std::fs;
use std::path::Path;
use tbrdma_cli::args::Args;

fn check(file: &str, text: &[u8]) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(file);
    if std::env::var_os("BLESS").is_some() {
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, text).unwrap();
    }
    let there = fs::read(&path).unwrap_or_default();
    assert!(
        there == text,
        "{file} is not current: run `BLESS=1 cargo test -p tbrdma-cli`"
    );
}

#[test]
fn manual_page_is_current() {
    // Without the version, which would make every release change the file.
    let command = Args::command().version(None::<&str>);
    let mut text = Vec::new();
    clap_mangen::Man::new(command.clone())
        .render(&mut text)
        .unwrap();
    check("man/tbrdma.1", &text);

    let mut command = command;
    command.build();
    for sub in command.get_subcommands() {
        let name = format!("tbrdma-{}", sub.get_name());
        let mut text = Vec::new();
        clap_mangen::Man::new(sub.clone())
            .title(&name)
            .render(&mut text)
            .unwrap();
        check(&format!("man/{name}.1"), &text);
    }
}

#[test]
fn completions_are_current() {
    let files = [
        (Shell::Bash, "completions/tbrdma.bash"),
        (Shell::Zsh, "completions/_tbrdma"),
        (Shell::Fish, "completions/tbrdma.fish"),
    ];
    for (shell, file) in files {
        let mut text = Vec::new();
        generate(shell, &mut Args::command(), "tbrdma", &mut text);
        check(file, &text);
    }
}
