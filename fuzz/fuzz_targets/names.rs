//! Names and keys of objects in a bucket.
#![no_main]

use libfuzzer_sys::fuzz_target;
use mainstay_archive::catalogue::{Catalogue, ListedObject};
use mainstay_archive::chain::{ChainRequest, ChainTarget, choose, list_chains};
use mainstay_archive::name::SnapshotName;
use mainstay_ids::{MemberId, Revision};

fuzz_target!(|text: &str| {
    if let Some(id) = MemberId::from_hex(text) {
        assert_eq!(MemberId::from_hex(&id.to_string()), Some(id));
    }
    if let Ok(name) = text.parse::<SnapshotName>() {
        assert_eq!(name.to_string().parse(), Ok(name));
    }
    let listed = text
        .lines()
        .map(|line| ListedObject {
            key: format!("p/v2/{line}"),
            size: 1,
            modified: Default::default(),
        })
        .collect();
    let catalogue = Catalogue::from_listing("p", listed);
    let _ = list_chains(&catalogue);
    for target in [
        ChainTarget::Latest,
        ChainTarget::Revision(Revision(7)),
        ChainTarget::Time(Default::default()),
    ] {
        let _ = choose(&catalogue, &ChainRequest::new(target));
    }
});
