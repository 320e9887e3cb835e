//! The manual pages in docs/man match the program. `make manual` regenerates them.

use std::path::Path;

use clap::CommandFactory;
use mainstay_restorer::args::RestorerArgs;
use mainstay_testkit::man_pages::assert_man_pages;

#[test]
fn man_pages_are_up_to_date() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/reference/man");
    assert_man_pages(&folder, RestorerArgs::command());
}

#[test]
fn every_command_definition_has_an_example() {
    for verb in RestorerArgs::command().get_subcommands() {
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
