//! A store as a container reaches it: flags, variables, volumes. The same for members and for Jobs.
//!
//! ```text
//! StoreSpec ─ provider alias ─► flags        --storage-provider, --store-container, --store-prefix, …
//!           ─ secretRef ──────► volume+mount files of the secret, and the variable that points at them
//!                             │ variables    ECS, which takes them from the secret's keys
//!           ─ nothing ────────► the identity the pod has by itself
//! ```
//!
//! Which of two stores of a container it is ([`Side`]) decides about prefixes only.

use k8s_openapi::api::core::v1::{
    EnvVar, EnvVarSource, HostPathVolumeSource, SecretKeySelector, Volume, VolumeMount,
};
use mainstay_crds::store::StoreSpec;

use crate::error::RenderError;
use crate::settings::OperatorSettings;
use crate::shape::RenderInput;
use crate::tls;

/// Who keeps the objects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoreProvider {
    /// Amazon S3 and whatever speaks its protocol.
    S3,
    /// Azure Blob Storage.
    Abs,
    /// Google Cloud Storage.
    Gcs,
    /// `OpenStack` Swift.
    Swift,
    /// Alibaba Cloud OSS.
    Oss,
    /// Dell EMC ECS.
    Ecs,
    /// `OpenShift` Container Storage.
    Ocs,
    /// A directory of the node.
    Local,
}

/// How resources may spell a provider.
const PROVIDER_ALIASES: [(&str, StoreProvider); 24] = [
    ("aws", StoreProvider::S3),
    ("S3", StoreProvider::S3),
    ("s3", StoreProvider::S3),
    ("stackit", StoreProvider::S3),
    ("azure", StoreProvider::Abs),
    ("ABS", StoreProvider::Abs),
    ("abs", StoreProvider::Abs),
    ("gcp", StoreProvider::Gcs),
    ("GCS", StoreProvider::Gcs),
    ("gcs", StoreProvider::Gcs),
    ("openstack", StoreProvider::Swift),
    ("Swift", StoreProvider::Swift),
    ("swift", StoreProvider::Swift),
    ("alicloud", StoreProvider::Oss),
    ("OSS", StoreProvider::Oss),
    ("oss", StoreProvider::Oss),
    ("dell", StoreProvider::Ecs),
    ("ECS", StoreProvider::Ecs),
    ("ecs", StoreProvider::Ecs),
    ("openshift", StoreProvider::Ocs),
    ("OCS", StoreProvider::Ocs),
    ("ocs", StoreProvider::Ocs),
    ("Local", StoreProvider::Local),
    ("local", StoreProvider::Local),
];

impl StoreProvider {
    /// The provider a resource means; `None` for a name nobody knows.
    pub fn from_alias(alias: &str) -> Option<Self> {
        let found = PROVIDER_ALIASES.iter().find(|(name, _)| *name == alias);
        found.map(|(_, provider)| *provider)
    }

    /// As the programs spell it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::S3 => "S3",
            Self::Abs => "ABS",
            Self::Gcs => "GCS",
            Self::Swift => "Swift",
            Self::Oss => "OSS",
            Self::Ecs => "ECS",
            Self::Ocs => "OCS",
            Self::Local => "Local",
        }
    }

    /// What the variable with the place of the credentials begins with.
    const fn credentials_env_prefix(self) -> Option<&'static str> {
        match self {
            Self::S3 => Some("AWS"),
            Self::Abs => Some("AZURE"),
            Self::Gcs => Some("GOOGLE"),
            Self::Swift => Some("OPENSTACK"),
            Self::Oss => Some("ALICLOUD"),
            Self::Ocs => Some("OPENSHIFT"),
            Self::Ecs | Self::Local => None,
        }
    }
}

/// Which of the stores of a container.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoreSide {
    /// The one that is backed up to and restored from.
    Primary,
    /// The one a copy reads from.
    Source,
}

/// What follows from the container, not from the store.
#[derive(Clone, Debug)]
pub struct StoreContext {
    /// Which of its stores.
    pub side: StoreSide,
    /// The field of the resource that describes the store, for errors.
    pub field: &'static str,
    /// Directory of the node that holds `Local` stores.
    pub local_store_root: String,
}

/// The home directory of containers with a `Local` store, which is below it.
const HOME_DIR: &str = "/var/mainstay";
/// The container of a `Local` store that names none.
const DEFAULT_LOCAL_CONTAINER: &str = "default.bkp";

impl StoreContext {
    /// The backup store of an Etcd.
    pub(crate) fn for_backup(settings: &OperatorSettings, shape: &RenderInput) -> Self {
        let root = shape.local_store_root.as_ref();
        Self {
            side: StoreSide::Primary,
            field: "spec.backup.store",
            local_store_root: root.unwrap_or(&settings.local_store_root).clone(),
        }
    }
}

/// How a container reaches a store.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct StoreAccess {
    /// Flags of the programs.
    pub flags: Vec<String>,
    /// Variables.
    pub env: Vec<EnvVar>,
    /// Volumes of the pod.
    pub volumes: Vec<Volume>,
    /// Mounts of the container.
    pub mounts: Vec<VolumeMount>,
    /// Where a `Local` store is mounted: a directory of the node that its user may have to be given first.
    pub local_dir: Option<String>,
}

impl StoreAccess {
    /// Wires a store; `None` for one without a provider, to which nothing is ever written.
    pub fn from_spec(store: &StoreSpec, place: &StoreContext) -> Result<Option<Self>, RenderError> {
        let alias = store.provider.as_deref().filter(|alias| !alias.is_empty());
        let Some(alias) = alias else {
            return Ok(None);
        };
        let Some(provider) = StoreProvider::from_alias(alias) else {
            return Err(RenderError::UnknownProvider {
                field: place.field,
                provider: alias.to_owned(),
            });
        };
        let container = store.container.as_deref().filter(|name| !name.is_empty());
        let container = match (container, provider) {
            (Some(container), _) => container,
            (None, StoreProvider::Local) => DEFAULT_LOCAL_CONTAINER,
            (None, _) => {
                let (field, provider) = (place.field, provider.name());
                return Err(RenderError::MissingContainer { field, provider });
            }
        };
        let mut wiring = Self {
            flags: build_flags(store, place.side, provider, container),
            ..Self::default()
        };
        let secret = store.secret_ref.as_ref().and_then(|secret| secret.non_empty_name());
        match (provider, secret) {
            (StoreProvider::Local, _) => wiring.add_local_dir(place, container),
            (_, None) => {} // the pod's own identity
            (StoreProvider::Ecs, Some(secret)) => wiring.add_secret_keys(place.side, secret),
            (_, Some(secret)) => wiring.add_secret_files(place.side, provider, secret),
        }
        Ok(Some(wiring))
    }

    fn add_local_dir(&mut self, place: &StoreContext, container: &str) {
        let name = match place.side {
            StoreSide::Primary => "local-backup",
            StoreSide::Source => "source-local-backup",
        };
        let dir = format!("{HOME_DIR}/{container}");
        self.env.push(env_var("HOME", HOME_DIR));
        self.volumes.push(Volume {
            name: name.into(),
            host_path: Some(HostPathVolumeSource {
                path: format!(
                    "{}/{container}",
                    place.local_store_root.trim_end_matches('/')
                ),
                type_: Some("DirectoryOrCreate".into()),
            }),
            ..Volume::default()
        });
        self.mounts.push(VolumeMount {
            name: name.into(),
            mount_path: dir.clone(),
            ..VolumeMount::default()
        });
        self.local_dir = Some(dir);
    }

    fn add_secret_keys(&mut self, side: StoreSide, secret: &str) {
        for (variable, key) in [
            ("ECS_ENDPOINT", "endpoint"),
            ("ECS_ACCESS_KEY_ID", "accessKeyID"),
            ("ECS_SECRET_ACCESS_KEY", "secretAccessKey"),
        ] {
            self.env.push(EnvVar {
                name: format!("{}{variable}", env_prefix(side)),
                value_from: Some(EnvVarSource {
                    secret_key_ref: Some(SecretKeySelector {
                        name: secret.into(),
                        key: key.into(),
                        optional: None,
                    }),
                    ..EnvVarSource::default()
                }),
                ..EnvVar::default()
            });
        }
    }

    fn add_secret_files(&mut self, side: StoreSide, provider: StoreProvider, secret: &str) {
        let Some(credentials) = provider.credentials_env_prefix() else {
            return; // never has files
        };
        let (name, dir) = match (side, provider) {
            (StoreSide::Primary, StoreProvider::Gcs) => ("etcd-backup-secret", "/var/.gcp"),
            (StoreSide::Primary, _) => ("etcd-backup-secret", "/var/etcd-backup"),
            (StoreSide::Source, StoreProvider::Gcs) => ("source-etcd-backup-secret", "/var/.source-gcp"),
            (StoreSide::Source, _) => ("source-etcd-backup-secret", "/var/source-etcd-backup"),
        };
        let value = match provider {
            StoreProvider::Gcs => format!("{dir}/serviceaccount.json"),
            _ => dir.to_owned(),
        };
        let variable = format!(
            "{}{credentials}_APPLICATION_CREDENTIALS",
            env_prefix(side)
        );
        self.env.push(env_var(&variable, &value));
        self.volumes.push(tls::secret_volume(name, secret));
        self.mounts.push(VolumeMount {
            name: name.into(),
            mount_path: dir.into(),
            read_only: Some(true),
            ..VolumeMount::default()
        });
    }
}

fn env_prefix(side: StoreSide) -> &'static str {
    match side {
        StoreSide::Primary => "",
        StoreSide::Source => "SOURCE_",
    }
}

fn build_flags(store: &StoreSpec, side: StoreSide, provider: StoreProvider, container: &str) -> Vec<String> {
    let prefix = match side {
        StoreSide::Primary => "",
        StoreSide::Source => "source-",
    };
    let flag = |name: &str, value: &str| format!("--{prefix}{name}={}", escape_dollar(value));
    let mut flags = vec![
        flag("storage-provider", provider.name()),
        flag("store-container", container),
        flag("store-prefix", &store.prefix),
    ];
    let endpoint = store.endpoint_override.as_deref();
    let endpoint = endpoint.filter(|endpoint| !endpoint.is_empty());
    flags.extend(endpoint.map(|endpoint| flag("store-endpoint-override", endpoint)));
    flags
}

/// The text itself: the kubelet replaces `$(NAME)` in arguments and variables, and takes `$$` for `$`.
pub(crate) fn escape_dollar(text: &str) -> String {
    text.replace('$', "$$")
}

/// A variable with a value.
pub(crate) fn env_var(name: &str, value: &str) -> EnvVar {
    EnvVar {
        name: name.into(),
        value: Some(value.into()),
        ..EnvVar::default()
    }
}

#[cfg(test)]
mod tests;
