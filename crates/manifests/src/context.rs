//! The input of all renderers: the Etcd, the settings, the shape, and values derived from them once.

use mainstay_crds::Etcd;

use crate::error::RenderError;
use crate::names::{Names, Ordinal};
use crate::render_input::{RenderInput, RuntimeComponents, UrlScheme};
use crate::settings::OperatorSettings;
use crate::store::{StoreAccess, StoreContext};
use crate::tls::PodCertificates;
use crate::values;

/// Input of all renderers.
pub(crate) struct RenderContext<'a> {
    pub(crate) etcd: &'a Etcd,
    pub(crate) settings: &'a OperatorSettings,
    pub(crate) input: &'a RenderInput,
    pub(crate) names: Names<'a>,
    pub(crate) ports: Ports,
    pub(crate) certificates: PodCertificates<'a>,
    pub(crate) quota_bytes: u64,
    /// Access to the store; `None` without a store or without a provider.
    pub(crate) store: Option<StoreAccess>,
}

/// Ports of a member pod.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ports {
    pub(crate) client: u16,
    pub(crate) peer: u16,
    pub(crate) metrics: u16,
    pub(crate) backup: u16,
}

impl Ports {
    fn from_etcd(etcd: &Etcd) -> Result<Self, RenderError> {
        let (server, backup) = (&etcd.spec.etcd, &etcd.spec.backup);
        Ok(Self {
            client: values::port_or_default("spec.etcd.clientPort", server.client_port, 2379)?,
            peer: values::port_or_default("spec.etcd.serverPort", server.server_port, 2380)?,
            metrics: values::port_or_default("spec.etcd.wrapperPort", server.wrapper_port, 9095)?,
            backup: values::port_or_default("spec.backup.port", backup.port, 8080)?,
        })
    }
}

impl<'a> RenderContext<'a> {
    pub(crate) fn new(
        etcd: &'a Etcd,
        settings: &'a OperatorSettings,
        input: &'a RenderInput,
    ) -> Result<Self, RenderError> {
        let names = Names::new(etcd);
        for (field, value) in [("name", names.etcd), ("namespace", names.namespace)] {
            if value.is_empty() {
                return Err(RenderError::MissingName { field });
            }
        }
        let spec = &etcd.spec;
        let place = StoreContext::for_backup(settings, input);
        let store = spec.backup.store.as_ref();
        Ok(Self {
            names,
            ports: Ports::from_etcd(etcd)?,
            certificates: PodCertificates::new(
                spec.etcd.client_url_tls.as_ref(),
                input.peer_tls.certificates(),
                spec.backup.tls.as_ref(),
            )?,
            quota_bytes: values::bytes_or_default(
                "spec.etcd.quota",
                spec.etcd.quota.as_ref(),
                8 << 30,
            )?,
            store: match store {
                Some(store) => StoreAccess::from_spec(store, &place)?,
                None => None,
            },
            etcd,
            settings,
            input,
        })
    }

    pub(crate) fn client_scheme(&self) -> UrlScheme {
        UrlScheme::from_tls(self.etcd.spec.etcd.client_url_tls.as_ref())
    }

    /// Peer URLs of a member: its own URL, then the additional URLs of the spec.
    pub(crate) fn member_peer_urls(&self, ordinal: Ordinal) -> Vec<String> {
        let own = self.pod_peer_url(&self.names.pod(ordinal));
        let member = self.names.member(ordinal);
        let listed = self.etcd.spec.etcd.additional_advertise_peer_urls.iter();
        let additional = listed
            .flatten()
            .filter(|entry| entry.member_name == member)
            .flat_map(|entry| entry.urls.iter().map(ToString::to_string));
        let mut urls = vec![own];
        for url in additional {
            if !urls.contains(&url) {
                urls.push(url);
            }
        }
        urls
    }

    /// Peer URL of a pod; `pod` may be a variable that the kubelet expands.
    pub(crate) fn pod_peer_url(&self, pod: &str) -> String {
        let scheme = self.input.peer_tls.scheme();
        format!(
            "{scheme}://{}:{}",
            self.names.pod_host(pod),
            self.ports.peer
        )
    }

    /// Client URL of a member.
    pub(crate) fn member_client_url(&self, ordinal: Ordinal) -> String {
        let host = self.names.pod_host(&self.names.pod(ordinal));
        format!("{}://{host}:{}", self.client_scheme(), self.ports.client)
    }

    /// Client endpoints of this cluster and of the existing cluster that it joins.
    pub(crate) fn service_endpoints(&self) -> Vec<String> {
        let own = format!(
            "{}://{}:{}",
            self.client_scheme(),
            self.names.client_service(),
            self.ports.client
        );
        let existing = self.etcd.spec.etcd.bootstrap_with_existing_cluster.as_ref();
        let others = existing
            .into_iter()
            .flat_map(|cluster| &cluster.client_endpoints);
        let own = self.has_runtime_components().then_some(own);
        own.into_iter()
            .chain(others.map(ToString::to_string))
            .collect()
    }

    pub(crate) fn has_runtime_components(&self) -> bool {
        self.input.runtime_components == RuntimeComponents::Enabled
    }

    pub(crate) fn runs_as_root(&self) -> bool {
        self.etcd.spec.run_as_root.unwrap_or(false)
    }

    /// Current image of etcd. The image that the shape holds back wins over the spec.
    pub(crate) fn etcd_image(&self) -> &str {
        let held = self.input.etcd_image.as_deref();
        held.or(self.etcd.spec.etcd.image.as_deref())
            .filter(|image| !image.is_empty())
            .unwrap_or(&self.settings.images.etcd)
    }

    pub(crate) fn pull_policy(&self) -> Option<String> {
        self.settings
            .image_pull_policy
            .map(|policy| policy.name().to_owned())
    }
}
