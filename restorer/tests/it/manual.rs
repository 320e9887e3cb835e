//! The manual pages in docs/man are those of the program. `make manual` writes them anew.

use std::path::{Path, PathBuf};

use clap::CommandFactory;
use steward_restorer::args::Args;

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/man")
}

/// Every page: the program's and one per verb.
fn pages() -> Vec<(String, String)> {
    let mut root = Args::command().disable_help_subcommand(true);
    root.build();
    let mut pages = vec![page(&root, "steward-restorer")];
    for verb in root.get_subcommands() {
        pages.push(page(verb, &format!("steward-restorer-{}", verb.get_name())));
    }
    pages
}

fn page(command: &clap::Command, name: &str) -> (String, String) {
    let mut bytes = Vec::new();
    let command = command.clone().display_name(name.to_owned()).version(None);
    clap_mangen::Man::new(command)
        .title(name)
        .date("")
        .render(&mut bytes)
        .unwrap();
    (format!("{name}.1"), String::from_utf8(bytes).unwrap())
}

#[test]
fn the_manual_pages_are_up_to_date() {
    let update = std::env::var_os("STEWARD_UPDATE_MANUAL").is_some();
    for (name, text) in pages() {
        let path = folder().join(&name);
        if update {
            std::fs::create_dir_all(folder()).unwrap();
            std::fs::write(&path, &text).unwrap();
        }
        let found = std::fs::read_to_string(&path).unwrap_or_default();
        assert!(found == text, "docs/man/{name} is stale: run `make manual`");
    }
}

#[test]
fn every_verb_teaches_with_an_example() {
    for verb in Args::command().get_subcommands() {
        let help = verb
            .get_after_help()
            .map(ToString::to_string)
            .unwrap_or_default();
        assert!(
            help.contains("Example"),
            "{} has no example",
            verb.get_name()
        );
    }
}
