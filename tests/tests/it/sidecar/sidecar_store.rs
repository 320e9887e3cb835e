//! The store of a test, as options of the sidecar and of the restorer.

use std::path::Path;

use mainstay_testkit::SidecarOptions;

use crate::servers::SeaweedFs;
use crate::support::RestorerBackup;

pub(crate) const PREFIX: &str = "etcd-main";

/// A store for the sidecars, and the backup in it for the restorer.
#[derive(Clone, Debug)]
pub(crate) struct SidecarStore {
    flags: Vec<(&'static str, String)>,
    variables: Vec<(&'static str, String)>,
    pub(crate) backup: RestorerBackup,
}

impl SidecarStore {
    /// A directory, shared by all.
    pub(crate) fn local(home: &Path) -> Self {
        Self {
            flags: vec![
                ("storage-provider", "Local".into()),
                ("store-container", RestorerBackup::CONTAINER.into()),
            ],
            variables: vec![("HOME", home.to_str().unwrap().to_owned())],
            backup: RestorerBackup::local(home, PREFIX),
        }
    }

    /// A bucket of an S3 server. Sidecars use another URL than the restorer, so that a proxy can cut their connections
    /// only.
    pub(crate) fn s3(weed: &SeaweedFs, way: &str) -> Self {
        let credentials = ("AWS_APPLICATION_CREDENTIALS", weed.credentials());
        let home = std::env::temp_dir();
        let bucket = (SeaweedFs::BUCKET, PREFIX);
        let backup = RestorerBackup::remote(&home, "S3", bucket, &weed.endpoint);
        Self {
            flags: vec![
                ("storage-provider", "S3".into()),
                ("store-container", SeaweedFs::BUCKET.into()),
                ("store-endpoint-override", way.to_owned()),
            ],
            backup: backup.with_variable(credentials.0, &credentials.1),
            variables: vec![credentials],
        }
    }

    /// Adds the store to the options of a sidecar.
    pub(crate) fn configure_sidecar(&self, options: SidecarOptions) -> SidecarOptions {
        let mut options = options.flag("store-prefix", PREFIX);
        for (flag, value) in &self.flags {
            options = options.flag(flag, value);
        }
        for (name, value) in &self.variables {
            options = options.variable(name, value);
        }
        options
    }
}
