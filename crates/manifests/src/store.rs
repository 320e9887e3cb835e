//! Access of a container to a store: flags, environment variables, volumes. Members and Jobs share it.
//!
//! ```text
//! StoreSpec ─ provider alias ─► flags        --storage-provider, --store-container, --store-prefix, …
//!           ─ secretRef ──────► volume+mount files of the secret, and the variable with their path
//!                             │ variables    ECS reads them from the keys of the secret
//!           ─ nothing ────────► the ambient identity of the pod
//! ```
//!
//! A container can have two stores; [`StoreSide`] selects the prefixes of flags and variables.

use k8s_openapi::api::core::v1::{
    EnvVar, EnvVarSource, HostPathVolumeSource, SecretKeySelector, Volume, VolumeMount,
};
use mainstay_crds::store::StoreSpec;
use mainstay_ids::StorageProvider;

use crate::error::RenderError;
use crate::render_input::RenderInput;
use crate::settings::OperatorSettings;
use crate::tls;

/// Names of the providers that a resource may use; the same as in etcd-druid.
const PROVIDER_ALIASES: [(&str, StorageProvider); 24] = [
    ("aws", StorageProvider::S3),
    ("S3", StorageProvider::S3),
    ("s3", StorageProvider::S3),
    ("stackit", StorageProvider::S3),
    ("azure", StorageProvider::Abs),
    ("ABS", StorageProvider::Abs),
    ("abs", StorageProvider::Abs),
    ("gcp", StorageProvider::Gcs),
    ("GCS", StorageProvider::Gcs),
    ("gcs", StorageProvider::Gcs),
    ("openstack", StorageProvider::Swift),
    ("Swift", StorageProvider::Swift),
    ("swift", StorageProvider::Swift),
    ("alicloud", StorageProvider::Oss),
    ("OSS", StorageProvider::Oss),
    ("oss", StorageProvider::Oss),
    ("dell", StorageProvider::Ecs),
    ("ECS", StorageProvider::Ecs),
    ("ecs", StorageProvider::Ecs),
    ("openshift", StorageProvider::Ocs),
    ("OCS", StorageProvider::Ocs),
    ("ocs", StorageProvider::Ocs),
    ("Local", StorageProvider::Local),
    ("local", StorageProvider::Local),
];

/// The provider with this alias; `None` if it is unknown.
pub fn provider_from_alias(alias: &str) -> Option<StorageProvider> {
    let found = PROVIDER_ALIASES.iter().find(|(name, _)| *name == alias);
    found.map(|(_, provider)| *provider)
}

/// Prefix of the `_APPLICATION_CREDENTIALS` variable; `None` for providers without credential files.
const fn credentials_env_prefix(provider: StorageProvider) -> Option<&'static str> {
    match provider {
        StorageProvider::S3 => Some("AWS"),
        StorageProvider::Abs => Some("AZURE"),
        StorageProvider::Gcs => Some("GOOGLE"),
        StorageProvider::Swift => Some("OPENSTACK"),
        StorageProvider::Oss => Some("ALICLOUD"),
        StorageProvider::Ocs => Some("OPENSHIFT"),
        StorageProvider::Ecs | StorageProvider::Local => None,
    }
}

/// Which store of a container.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoreSide {
    /// The store of backup and restore, and the target of a copy.
    Primary,
    /// The source of a copy.
    Source,
}

/// Properties of the container that uses a store.
#[derive(Clone, Debug)]
pub struct StoreContext {
    /// Which store of the container.
    pub side: StoreSide,
    /// Path of the store in the spec, for errors.
    pub field: &'static str,
    /// Node directory that contains `Local` stores.
    pub local_store_root: String,
}

/// `HOME` of containers with a `Local` store; the programs resolve the store below it.
const HOME_DIR: &str = "/var/mainstay";
/// Container of a `Local` store that names none.
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

/// Access of a container to a store.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct StoreAccess {
    /// Flags of the program.
    pub flags: Vec<String>,
    /// Environment variables of the container.
    pub env: Vec<EnvVar>,
    /// Volumes of the pod.
    pub volumes: Vec<Volume>,
    /// Mounts of the container.
    pub mounts: Vec<VolumeMount>,
    /// Mount path of a `Local` store: a node directory that may have to be chowned first.
    pub local_dir: Option<String>,
}

impl StoreAccess {
    /// Access to a store; `None` if it has no provider, in which case no backup is taken.
    pub fn from_spec(store: &StoreSpec, place: &StoreContext) -> Result<Option<Self>, RenderError> {
        let alias = store.provider.as_deref().filter(|alias| !alias.is_empty());
        let Some(alias) = alias else {
            return Ok(None);
        };
        let Some(provider) = provider_from_alias(alias) else {
            return Err(RenderError::UnknownProvider {
                field: place.field,
                provider: alias.to_owned(),
            });
        };
        let container = store.container.as_deref().filter(|name| !name.is_empty());
        let container = match (container, provider) {
            (Some(container), _) => container,
            (None, StorageProvider::Local) => DEFAULT_LOCAL_CONTAINER,
            (None, _) => {
                let (field, provider) = (place.field, provider.name());
                return Err(RenderError::MissingContainer { field, provider });
            }
        };
        let mut access = Self {
            flags: build_flags(store, place.side, provider, container),
            ..Self::default()
        };
        let secret = store
            .secret_ref
            .as_ref()
            .and_then(|secret| secret.non_empty_name());
        match (provider, secret) {
            (StorageProvider::Local, _) => access.add_local_dir(place, container),
            (_, None) => {} // the ambient identity of the pod
            (StorageProvider::Ecs, Some(secret)) => access.add_secret_keys(place.side, secret),
            (_, Some(secret)) => access.add_secret_files(place.side, provider, secret),
        }
        Ok(Some(access))
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

    fn add_secret_files(&mut self, side: StoreSide, provider: StorageProvider, secret: &str) {
        let Some(credentials) = credentials_env_prefix(provider) else {
            return; // the provider has no credential files
        };
        let (name, dir) = match (side, provider) {
            (StoreSide::Primary, StorageProvider::Gcs) => ("etcd-backup-secret", "/var/.gcp"),
            (StoreSide::Primary, _) => ("etcd-backup-secret", "/var/etcd-backup"),
            (StoreSide::Source, StorageProvider::Gcs) => {
                ("source-etcd-backup-secret", "/var/.source-gcp")
            }
            (StoreSide::Source, _) => ("source-etcd-backup-secret", "/var/source-etcd-backup"),
        };
        let value = match provider {
            StorageProvider::Gcs => format!("{dir}/serviceaccount.json"),
            _ => dir.to_owned(),
        };
        let variable = format!("{}{credentials}_APPLICATION_CREDENTIALS", env_prefix(side));
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

fn build_flags(
    store: &StoreSpec,
    side: StoreSide,
    provider: StorageProvider,
    container: &str,
) -> Vec<String> {
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

/// Escapes `$`: the kubelet expands `$(NAME)` in arguments and variables, and reads `$$` as `$`.
pub(crate) fn escape_dollar(text: &str) -> String {
    text.replace('$', "$$")
}

/// An environment variable with a literal value.
pub(crate) fn env_var(name: &str, value: &str) -> EnvVar {
    EnvVar {
        name: name.into(),
        value: Some(value.into()),
        ..EnvVar::default()
    }
}

#[cfg(test)]
mod tests;
