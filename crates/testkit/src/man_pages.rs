//! Compares committed manual pages with the command line of a program.

use std::fs;
use std::path::Path;

use clap::Command;

/// Compares the pages below `folder` with those of a program: its own and one per subcommand. If
/// `MAINSTAY_UPDATE_MANUAL` is set, the pages are regenerated.
///
/// # Panics
/// If a page is out of date.
pub fn assert_man_pages(folder: &Path, command: Command) {
    let update = std::env::var_os("MAINSTAY_UPDATE_MANUAL").is_some();
    for (name, text) in render_pages(command) {
        let path = folder.join(&name);
        if update {
            fs::create_dir_all(folder).expect("create the directory of the manual");
            fs::write(&path, &text).expect("write a manual page");
        }
        let found = fs::read_to_string(&path).unwrap_or_default();
        assert!(
            found == text,
            "docs/reference/man/{name} is out of date: run `make manual`"
        );
    }
}

fn render_pages(command: Command) -> Vec<(String, String)> {
    let mut root = command.disable_help_subcommand(true);
    root.build();
    let program = root.get_name().to_owned();
    let verbs = root
        .get_subcommands()
        .filter(|verb| !verb.is_hide_set())
        .map(|verb| render_page(verb, &format!("{program}-{}", verb.get_name())));
    std::iter::once(render_page(&root, &program))
        .chain(verbs)
        .collect()
}

fn render_page(command: &Command, name: &str) -> (String, String) {
    let mut bytes = Vec::new();
    let command = command.clone().display_name(name.to_owned()).version(None);
    clap_mangen::Man::new(command)
        .title(name)
        .date("")
        .render(&mut bytes)
        .expect("render a manual page");
    let text = String::from_utf8(bytes).expect("a manual page is UTF-8");
    (format!("{name}.1"), text)
}
