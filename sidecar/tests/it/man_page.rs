//! The manual page in docs/man matches the program. `make manual` regenerates it.

use std::path::Path;

use clap::CommandFactory;
use mainstay_sidecar::args::SidecarArgs;
use mainstay_testkit::man_pages::assert_man_pages;

#[test]
fn man_page_is_up_to_date() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/reference/man");
    assert_man_pages(&folder, SidecarArgs::command());
}

#[test]
fn help_contains_an_example() {
    let help = SidecarArgs::command();
    let help = help.get_after_help().map(ToString::to_string);
    assert!(help.is_some_and(|help| help.contains("Example")));
}
