//! Certificates: which secret is mounted where, and the names of the files.
//!
//! TLS for clients, for members and for the sidecar are independent of each other. Secrets are mounted, never read: the
//! kubelet updates the files when a secret is renewed.

use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::core::v1::{
    ConfigMap, Container, PodSpec, SecretVolumeSource, Volume, VolumeMount,
};
use mainstay_crds::tls::{CaSecretReference, PeerTlsConfig, SecretReference, TlsConfig};
use serde::Deserialize;

use crate::config;
use crate::error::RenderError;

/// Readable for the fsGroup of the pod, because the containers do not run as root.
pub(crate) const SECRET_MODE: i32 = 0o640;

const CLIENT_CA: SecretMount = SecretMount("etcd-ca", "/var/etcd/ssl/ca");
const SERVER_TLS: SecretMount = SecretMount("etcd-server-tls", "/var/etcd/ssl/server");
const CLIENT_TLS: SecretMount = SecretMount("etcd-client-tls", "/var/etcd/ssl/client");
const PEER_CA: SecretMount = SecretMount("etcd-peer-ca", "/var/etcd/ssl/peer/ca");
const PEER_SERVER: SecretMount = SecretMount("etcd-peer-server-tls", "/var/etcd/ssl/peer/server");
const BACKUP_CA: SecretMount = SecretMount("backup-restore-ca", "/var/etcdbr/ssl/ca");
const BACKUP_SERVER: SecretMount =
    SecretMount("backup-restore-server-tls", "/var/etcdbr/ssl/server");

/// Volume name and mount path of a secret.
#[derive(Clone, Copy)]
struct SecretMount(&'static str, &'static str);

impl SecretMount {
    fn volume(self, secret: &str) -> Volume {
        secret_volume(self.0, secret)
    }

    fn mount(self) -> VolumeMount {
        VolumeMount {
            name: self.0.into(),
            mount_path: self.1.into(),
            read_only: Some(true),
            ..VolumeMount::default()
        }
    }

    fn file(self, name: &str) -> String {
        format!("{}/{name}", self.1)
    }

    /// The secret that a pod mounts in this volume.
    fn find_secret(self, pod: &PodSpec) -> Option<String> {
        let volume = pod.volumes.iter().flatten().find(|v| v.name == self.0)?;
        volume.secret.as_ref()?.secret_name.clone()
    }

    /// The file below the mount path that the arguments of a pod name.
    fn find_file(self, pod: &PodSpec) -> Option<String> {
        let folder = format!("{}/", self.1);
        let mut words = pod.containers.iter().flat_map(command_line);
        words.find_map(|word| Some(word.split_once(&folder)?.1.to_owned()))
    }
}

fn command_line(container: &Container) -> impl Iterator<Item = &String> {
    container.command.iter().chain(&container.args).flatten()
}

/// Whether the name of a volume or an argument of a pod refers to certificates of its listeners, so that
/// [`find_client_tls`] and [`find_backup_tls`] need it.
pub fn is_certificate_reference(text: &str) -> bool {
    [CLIENT_CA, SERVER_TLS, CLIENT_TLS, BACKUP_CA, BACKUP_SERVER]
        .iter()
        .any(|place| text == place.0 || text.contains(&format!("{}/", place.1)))
}

/// TLS of the client listener of etcd in a pod, also if etcd-druid created the pod. `None` without TLS.
pub fn find_client_tls(pod: &PodSpec) -> Option<TlsConfig> {
    let client = CLIENT_TLS.find_secret(pod);
    let tls = find_mounted_tls(pod, CLIENT_CA, SERVER_TLS)?;
    Some(TlsConfig {
        client: client.map(|name| SecretReference {
            name: Some(name),
            ..SecretReference::default()
        }),
        ..tls
    })
}

/// TLS of the listener of the sidecar in a pod. The CA key is set only if the arguments name the file.
pub fn find_backup_tls(pod: &PodSpec) -> Option<TlsConfig> {
    find_mounted_tls(pod, BACKUP_CA, BACKUP_SERVER)
}

fn find_mounted_tls(pod: &PodSpec, ca: SecretMount, server: SecretMount) -> Option<TlsConfig> {
    Some(TlsConfig {
        ca: CaSecretReference {
            name: Some(ca.find_secret(pod)?),
            data_key: ca.find_file(pod),
            ..CaSecretReference::default()
        },
        server: SecretReference {
            name: Some(server.find_secret(pod)?),
            ..SecretReference::default()
        },
        client: None,
    })
}

/// Volume with the files of a secret.
pub(crate) fn secret_volume(name: &str, secret: &str) -> Volume {
    Volume {
        name: name.into(),
        secret: Some(SecretVolumeSource {
            secret_name: Some(secret.into()),
            default_mode: Some(SECRET_MODE),
            ..SecretVolumeSource::default()
        }),
        ..Volume::default()
    }
}

/// Paths of the PEM files of one end of a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PemFiles {
    /// CA bundle.
    pub ca: String,
    /// Certificate.
    pub certificate: String,
    /// Private key.
    pub key: String,
}

/// Certificates of one Etcd in this reconcile.
#[derive(Clone, Copy, Debug)]
pub struct PodCertificates<'a> {
    client: Option<ClientSecrets<'a>>,
    peer: Option<ListenerSecrets<'a>>,
    backup: Option<ListenerSecrets<'a>>,
    skip_client_san_verification: Option<bool>,
}

/// Secrets of a listener.
#[derive(Clone, Copy, Debug)]
struct ListenerSecrets<'a> {
    ca: &'a str,
    ca_key: &'a str,
    server: &'a str,
}

/// Secrets of the client listener of etcd. It requires client certificates, so without a client secret the
/// server certificate is used.
#[derive(Clone, Copy, Debug)]
struct ClientSecrets<'a> {
    listener: ListenerSecrets<'a>,
    client: Option<&'a str>,
}

impl<'a> PodCertificates<'a> {
    /// Client and sidecar TLS from the spec; peer TLS as it is in this reconcile.
    pub fn new(
        client: Option<&'a TlsConfig>,
        peer: Option<&'a PeerTlsConfig>,
        backup: Option<&'a TlsConfig>,
    ) -> Result<Self, RenderError> {
        let client = client.map(|tls| {
            Ok(ClientSecrets {
                listener: resolve_listener(tls, &CLIENT_FIELDS)?,
                client: tls.client_secret(),
            })
        });
        Ok(Self {
            client: client.transpose()?,
            peer: peer
                .map(|peer| resolve_listener(&peer.tls, &PEER_FIELDS))
                .transpose()?,
            backup: backup
                .map(|tls| resolve_listener(tls, &BACKUP_FIELDS))
                .transpose()?,
            skip_client_san_verification: peer.and_then(|peer| peer.skip_client_san_verification),
        })
    }

    /// Volumes of a member pod.
    pub fn volumes(&self) -> Vec<Volume> {
        let mut volumes = Vec::new();
        if let Some(tls) = self.client {
            volumes.push(CLIENT_CA.volume(tls.listener.ca));
            volumes.push(SERVER_TLS.volume(tls.listener.server));
            volumes.extend(tls.client.map(|secret| CLIENT_TLS.volume(secret)));
        }
        if let Some(tls) = self.peer {
            volumes.extend([PEER_CA.volume(tls.ca), PEER_SERVER.volume(tls.server)]);
        }
        if let Some(tls) = self.backup {
            volumes.extend([BACKUP_CA.volume(tls.ca), BACKUP_SERVER.volume(tls.server)]);
        }
        volumes
    }

    /// Mounts of the etcd container.
    pub fn etcd_mounts(&self) -> Vec<VolumeMount> {
        let mut mounts = Vec::new();
        if self.client.is_some() {
            mounts.extend([CLIENT_CA.mount(), SERVER_TLS.mount()]);
        }
        if self.peer.is_some() {
            mounts.extend([PEER_CA.mount(), PEER_SERVER.mount()]);
        }
        mounts
    }

    /// Mounts of etcd clients inside the pod.
    pub fn client_mounts(&self) -> Vec<VolumeMount> {
        self.client.map_or_else(Vec::new, |tls| {
            vec![CLIENT_CA.mount(), client_secret_mount(tls).mount()]
        })
    }

    /// Mounts of the sidecar for its own listener.
    pub fn backup_mounts(&self) -> Vec<VolumeMount> {
        self.backup
            .map_or_else(Vec::new, |_| vec![BACKUP_CA.mount(), BACKUP_SERVER.mount()])
    }

    /// Files of the client listener of etcd.
    pub fn client_listener_files(&self) -> Option<PemFiles> {
        self.client.map(|tls| PemFiles {
            ca: CLIENT_CA.file(tls.listener.ca_key),
            certificate: SERVER_TLS.file("tls.crt"),
            key: SERVER_TLS.file("tls.key"),
        })
    }

    /// Files of the peer listener of etcd.
    pub fn peer_listener_files(&self) -> Option<PemFiles> {
        self.peer.map(|tls| PemFiles {
            ca: PEER_CA.file(tls.ca_key),
            certificate: PEER_SERVER.file("tls.crt"),
            key: PEER_SERVER.file("tls.key"),
        })
    }

    /// Whether members accept certificates with any name.
    pub fn skip_client_san_verification(&self) -> Option<bool> {
        self.skip_client_san_verification
    }

    /// Files that etcd clients inside the pod use.
    pub fn client_files(&self) -> Option<PemFiles> {
        self.client.map(|tls| PemFiles {
            ca: CLIENT_CA.file(tls.listener.ca_key),
            certificate: client_secret_mount(tls).file("tls.crt"),
            key: client_secret_mount(tls).file("tls.key"),
        })
    }

    /// Files of the listener of the sidecar.
    pub fn backup_listener_files(&self) -> Option<PemFiles> {
        self.backup.map(|tls| PemFiles {
            ca: BACKUP_CA.file(tls.ca_key),
            certificate: BACKUP_SERVER.file("tls.crt"),
            key: BACKUP_SERVER.file("tls.key"),
        })
    }
}

fn client_secret_mount(tls: ClientSecrets<'_>) -> SecretMount {
    match tls.client {
        Some(_) => CLIENT_TLS,
        None => SERVER_TLS,
    }
}

const CLIENT_FIELDS: [&str; 2] = [
    "spec.etcd.clientUrlTls.tlsCASecretRef",
    "spec.etcd.clientUrlTls.serverTLSSecretRef",
];
const PEER_FIELDS: [&str; 2] = [
    "spec.etcd.peerUrlTls.tlsCASecretRef",
    "spec.etcd.peerUrlTls.serverTLSSecretRef",
];
const BACKUP_FIELDS: [&str; 2] = [
    "spec.backup.tls.tlsCASecretRef",
    "spec.backup.tls.serverTLSSecretRef",
];

fn resolve_listener<'a>(
    tls: &'a TlsConfig,
    [ca, server]: &[&'static str; 2],
) -> Result<ListenerSecrets<'a>, RenderError> {
    Ok(ListenerSecrets {
        ca: tls
            .ca
            .non_empty_name()
            .ok_or(RenderError::MissingSecret { field: ca })?,
        ca_key: tls.ca.key(),
        server: tls
            .server
            .non_empty_name()
            .ok_or(RenderError::MissingSecret { field: server })?,
    })
}

/// TLS between the members of a running cluster, read from its objects, also if etcd-druid created them. `None`
/// without TLS.
pub fn find_peer_tls(stateful_set: &StatefulSet, config_map: &ConfigMap) -> Option<PeerTlsConfig> {
    let pod = stateful_set.spec.as_ref()?.template.spec.as_ref()?;
    let (ca, server) = (PEER_CA.find_secret(pod)?, PEER_SERVER.find_secret(pod)?);
    let security = config_map
        .data
        .as_ref()
        .and_then(|data| data.get(config::KEY))
        .and_then(|text| serde_norway::from_str::<RenderedConfig>(text).ok())
        .and_then(|written| written.peer_transport_security)
        .unwrap_or_default();
    let key = security.trusted_ca_file.and_then(|file| {
        let (_, key) = file.rsplit_once('/')?;
        Some(key.to_owned())
    });
    Some(PeerTlsConfig {
        tls: TlsConfig {
            ca: CaSecretReference {
                name: Some(ca),
                data_key: key,
                ..CaSecretReference::default()
            },
            server: SecretReference {
                name: Some(server),
                ..SecretReference::default()
            },
            client: None,
        },
        skip_client_san_verification: security.skip_client_san_verification,
    })
}

/// The part of a rendered configuration that describes peer TLS.
#[derive(Deserialize)]
#[serde(rename_all = "kebab-case")]
struct RenderedConfig {
    peer_transport_security: Option<RenderedTransportSecurity>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "kebab-case")]
struct RenderedTransportSecurity {
    trusted_ca_file: Option<String>,
    skip_client_san_verification: Option<bool>,
}
