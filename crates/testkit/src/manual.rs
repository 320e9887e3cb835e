//! Manual pages are those of the program: written from its command line, and compared with what is committed.

use std::fs;
use std::path::Path;

use clap::Command;

/// Compares the pages below `folder` with those of a program: its own and one per verb. With `MAINSTAY_UPDATE_MANUAL` set
/// they are written anew.
///
/// # Panics
/// When a page is stale.
pub fn expect_pages(folder: &Path, command: Command) {
    let update = std::env::var_os("MAINSTAY_UPDATE_MANUAL").is_some();
    for (name, text) in pages(command) {
        let path = folder.join(&name);
        if update {
            fs::create_dir_all(folder).expect("make the folder of the manual");
            fs::write(&path, &text).expect("write a page of the manual");
        }
        let found = fs::read_to_string(&path).unwrap_or_default();
        assert!(
            found == text,
            "docs/reference/man/{name} is stale: run `make manual`"
        );
    }
}

fn pages(command: Command) -> Vec<(String, String)> {
    let mut root = command.disable_help_subcommand(true);
    root.build();
    let program = root.get_name().to_owned();
    let verbs = root
        .get_subcommands()
        .filter(|verb| !verb.is_hide_set())
        .map(|verb| page(verb, &format!("{program}-{}", verb.get_name())));
    std::iter::once(page(&root, &program))
        .chain(verbs)
        .collect()
}

fn page(command: &Command, name: &str) -> (String, String) {
    let mut bytes = Vec::new();
    let command = command.clone().display_name(name.to_owned()).version(None);
    clap_mangen::Man::new(command)
        .title(name)
        .date("")
        .render(&mut bytes)
        .expect("render a page of the manual");
    let text = String::from_utf8(bytes).expect("a page of the manual is text");
    (format!("{name}.1"), text)
}
