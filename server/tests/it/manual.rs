use std::path::Path;

use clap::CommandFactory;
use mainstay_server::args::ServerArgs;
use mainstay_testkit::man_pages::assert_man_pages;

#[test]
fn manual_pages_are_up_to_date() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/reference/man");
    assert_man_pages(&folder, ServerArgs::command());
}
