//! What holds for every Etcd of an installation.

/// What holds for every Etcd of an installation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OperatorSettings {
    /// The images where a resource names none.
    pub images: DefaultImages,
    /// When the kubelet pulls images. `None` leaves it to the cluster.
    pub image_pull_policy: Option<PullPolicy>,
    /// Whether pods get a token of their service account without asking for one.
    pub automount_service_account_token: bool,
    /// Directory of the node below which stores of the provider `Local` are, when their secret names none.
    pub local_store_root: String,
}

/// The images where a resource names none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DefaultImages {
    /// etcd, as its authors publish it.
    pub etcd: String,
    /// `mainstay-sidecar`.
    pub sidecar: String,
    /// `mainstay-restorer`: init container and Jobs.
    pub restorer: String,
}

/// When the kubelet pulls an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PullPolicy {
    /// At every start.
    Always,
    /// When the node has none.
    IfNotPresent,
    /// Never: it is there, or the pod does not start.
    Never,
}

impl PullPolicy {
    /// As Kubernetes spells it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Always => "Always",
            Self::IfNotPresent => "IfNotPresent",
            Self::Never => "Never",
        }
    }
}

/// Where stores of the provider `Local` are on a node.
pub const LOCAL_STORE_ROOT: &str = "/etc/gardener/local-backupbuckets";

impl OperatorSettings {
    /// Those images, and the defaults for everything else.
    pub fn with_images(images: DefaultImages) -> Self {
        Self {
            images,
            image_pull_policy: None,
            automount_service_account_token: true,
            local_store_root: LOCAL_STORE_ROOT.to_owned(),
        }
    }
}
