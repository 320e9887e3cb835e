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
use crate::settings::Settings;
use crate::shape::Shape;
use crate::tls;

/// Who keeps the objects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Provider {
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
const ALIASES: [(&str, Provider); 24] = [
    ("aws", Provider::S3),
    ("S3", Provider::S3),
    ("s3", Provider::S3),
    ("stackit", Provider::S3),
    ("azure", Provider::Abs),
    ("ABS", Provider::Abs),
    ("abs", Provider::Abs),
    ("gcp", Provider::Gcs),
    ("GCS", Provider::Gcs),
    ("gcs", Provider::Gcs),
    ("openstack", Provider::Swift),
    ("Swift", Provider::Swift),
    ("swift", Provider::Swift),
    ("alicloud", Provider::Oss),
    ("OSS", Provider::Oss),
    ("oss", Provider::Oss),
    ("dell", Provider::Ecs),
    ("ECS", Provider::Ecs),
    ("ecs", Provider::Ecs),
    ("openshift", Provider::Ocs),
    ("OCS", Provider::Ocs),
    ("ocs", Provider::Ocs),
    ("Local", Provider::Local),
    ("local", Provider::Local),
];

impl Provider {
    /// The provider a resource means; `None` for a name nobody knows.
    pub fn from_alias(alias: &str) -> Option<Self> {
        let found = ALIASES.iter().find(|(name, _)| *name == alias);
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
    const fn credentials(self) -> Option<&'static str> {
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
pub enum Side {
    /// The one that is backed up to and restored from.
    Primary,
    /// The one a copy reads from.
    Source,
}

/// What follows from the container, not from the store.
#[derive(Clone, Debug)]
pub struct Place {
    /// Which of its stores.
    pub side: Side,
    /// The field of the resource that describes the store, for errors.
    pub field: &'static str,
    /// Directory of the node that holds `Local` stores.
    pub local_store_root: String,
}

/// The home directory of containers with a `Local` store, which is below it.
const HOME: &str = "/var/mainstay";
/// The container of a `Local` store that names none.
const LOCAL_CONTAINER: &str = "default.bkp";

impl Place {
    /// The backup store of an Etcd.
    pub(crate) fn of_etcd(settings: &Settings, shape: &Shape) -> Self {
        let root = shape.local_store_root.as_ref();
        Self {
            side: Side::Primary,
            field: "spec.backup.store",
            local_store_root: root.unwrap_or(&settings.local_store_root).clone(),
        }
    }
}

/// How a container reaches a store.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Wiring {
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

impl Wiring {
    /// Wires a store; `None` for one without a provider, to which nothing is ever written.
    pub fn of(store: &StoreSpec, place: &Place) -> Result<Option<Self>, RenderError> {
        let alias = store.provider.as_deref().filter(|alias| !alias.is_empty());
        let Some(alias) = alias else {
            return Ok(None);
        };
        let Some(provider) = Provider::from_alias(alias) else {
            return Err(RenderError::Provider {
                field: place.field,
                provider: alias.to_owned(),
            });
        };
        let container = store.container.as_deref().filter(|name| !name.is_empty());
        let container = match (container, provider) {
            (Some(container), _) => container,
            (None, Provider::Local) => LOCAL_CONTAINER,
            (None, _) => {
                let (field, provider) = (place.field, provider.name());
                return Err(RenderError::Container { field, provider });
            }
        };
        let mut wiring = Self {
            flags: flags(store, place.side, provider, container),
            ..Self::default()
        };
        let secret = store.secret_ref.as_ref().and_then(|secret| secret.named());
        match (provider, secret) {
            (Provider::Local, _) => wiring.add_directory(place, container),
            (_, None) => {} // the pod's own identity
            (Provider::Ecs, Some(secret)) => wiring.add_keys(place.side, secret),
            (_, Some(secret)) => wiring.add_files(place.side, provider, secret),
        }
        Ok(Some(wiring))
    }

    fn add_directory(&mut self, place: &Place, container: &str) {
        let name = match place.side {
            Side::Primary => "local-backup",
            Side::Source => "source-local-backup",
        };
        let dir = format!("{HOME}/{container}");
        self.env.push(plain("HOME", HOME));
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

    fn add_keys(&mut self, side: Side, secret: &str) {
        for (variable, key) in [
            ("ECS_ENDPOINT", "endpoint"),
            ("ECS_ACCESS_KEY_ID", "accessKeyID"),
            ("ECS_SECRET_ACCESS_KEY", "secretAccessKey"),
        ] {
            self.env.push(EnvVar {
                name: format!("{}{variable}", variable_prefix(side)),
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

    fn add_files(&mut self, side: Side, provider: Provider, secret: &str) {
        let Some(credentials) = provider.credentials() else {
            return; // never has files
        };
        let (name, dir) = match (side, provider) {
            (Side::Primary, Provider::Gcs) => ("etcd-backup-secret", "/var/.gcp"),
            (Side::Primary, _) => ("etcd-backup-secret", "/var/etcd-backup"),
            (Side::Source, Provider::Gcs) => ("source-etcd-backup-secret", "/var/.source-gcp"),
            (Side::Source, _) => ("source-etcd-backup-secret", "/var/source-etcd-backup"),
        };
        let value = match provider {
            Provider::Gcs => format!("{dir}/serviceaccount.json"),
            _ => dir.to_owned(),
        };
        let variable = format!(
            "{}{credentials}_APPLICATION_CREDENTIALS",
            variable_prefix(side)
        );
        self.env.push(plain(&variable, &value));
        self.volumes.push(tls::secret_volume(name, secret));
        self.mounts.push(VolumeMount {
            name: name.into(),
            mount_path: dir.into(),
            read_only: Some(true),
            ..VolumeMount::default()
        });
    }
}

fn variable_prefix(side: Side) -> &'static str {
    match side {
        Side::Primary => "",
        Side::Source => "SOURCE_",
    }
}

fn flags(store: &StoreSpec, side: Side, provider: Provider, container: &str) -> Vec<String> {
    let prefix = match side {
        Side::Primary => "",
        Side::Source => "source-",
    };
    let flag = |name: &str, value: &str| format!("--{prefix}{name}={}", literal(value));
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
pub(crate) fn literal(text: &str) -> String {
    text.replace('$', "$$")
}

/// A variable with a value.
pub(crate) fn plain(name: &str, value: &str) -> EnvVar {
    EnvVar {
        name: name.into(),
        value: Some(value.into()),
        ..EnvVar::default()
    }
}

#[cfg(test)]
mod tests;
