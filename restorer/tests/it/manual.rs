//! The manual pages in docs/reference/man are those of the program. `make manual` writes them anew.

use std::path::Path;

use clap::CommandFactory;
use mainstay_restorer::args::Args;
use mainstay_testkit::manual::expect_pages;

#[test]
fn the_manual_pages_are_up_to_date() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/reference/man");
    expect_pages(&folder, Args::command());
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
