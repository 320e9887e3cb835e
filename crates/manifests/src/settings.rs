//! Settings of the installation, the same for every Etcd.

use k8s_openapi::api::core::v1::LocalObjectReference;

/// Settings of the installation, the same for every Etcd.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OperatorSettings {
    /// Images for resources that name none.
    pub images: DefaultImages,
    /// Pull policy of all images. `None`: the default of Kubernetes.
    pub image_pull_policy: Option<PullPolicy>,
    /// Names of the Secrets with which nodes pull the images. Kubernetes ignores those that a namespace does not have.
    pub image_pull_secrets: Vec<String>,
    /// Whether the `ServiceAccount` mounts its token into pods automatically.
    pub automount_service_account_token: bool,
    /// Node directory that contains the stores of the provider `Local`, unless their secret names one.
    pub local_store_root: String,
}

/// Images for resources that name none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DefaultImages {
    /// Upstream image of etcd.
    pub etcd: String,
    /// Image of `mainstay-sidecar`.
    pub sidecar: String,
    /// Image of `mainstay-restorer`, used by init containers and Jobs.
    pub restorer: String,
}

/// Image pull policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PullPolicy {
    /// Pull at every start.
    Always,
    /// Pull if the node does not have the image.
    IfNotPresent,
    /// Never pull; the pod does not start if the node does not have the image.
    Never,
}

impl PullPolicy {
    /// Value of `imagePullPolicy`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Always => "Always",
            Self::IfNotPresent => "IfNotPresent",
            Self::Never => "Never",
        }
    }
}

/// Default node directory of stores of the provider `Local`.
pub const LOCAL_STORE_ROOT: &str = "/etc/gardener/local-backupbuckets";

impl OperatorSettings {
    /// The field `imagePullSecrets` of a pod.
    pub(crate) fn pull_secrets(&self) -> Option<Vec<LocalObjectReference>> {
        let names = self.image_pull_secrets.iter();
        let secrets: Vec<_> = names
            .map(|name| LocalObjectReference { name: name.clone() })
            .collect();
        (!secrets.is_empty()).then_some(secrets)
    }

    /// These images, and defaults for everything else.
    pub fn with_images(images: DefaultImages) -> Self {
        Self {
            images,
            image_pull_policy: None,
            image_pull_secrets: Vec::new(),
            automount_service_account_token: true,
            local_store_root: LOCAL_STORE_ROOT.to_owned(),
        }
    }
}
