//! The server's certificates, reloaded when their files change.
//!
//! The files are checked when a connection arrives, at most once a second. If they are invalid (half written, not
//! matching, empty), that is logged once and connections continue with the previous certificates.

use std::fs::{self, File};
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use mainstay_telemetry::ErrorChain;
use rustls::crypto::{CryptoProvider, aws_lc_rs};
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::{VerifierBuilderError, WebPkiClientVerifier};
use rustls::{RootCertStore, ServerConfig};
use tracing::{info, warn};

use super::ServerTlsFiles;

/// Minimum interval between two checks of the files.
const RECHECK_INTERVAL: Duration = Duration::from_secs(1);

/// Larger than any certificate chain or CA bundle; bounds the memory if a path is wrong.
const MAX_FILE_BYTES: u64 = 4 << 20;

#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TlsError {
    #[error("failed to read {}", path.display())]
    Read { path: PathBuf, source: io::Error },
    #[error("{} is larger than {MAX_FILE_BYTES} bytes", path.display())]
    TooLarge { path: PathBuf },
    #[error("{} contains no valid PEM {what}", path.display())]
    Pem {
        path: PathBuf,
        /// Expected content.
        what: &'static str,
        source: pem::Error,
    },
    #[error("{} contains no certificate", path.display())]
    NoCertificate { path: PathBuf },
    #[error("certificate {} does not match key {}", certificate.display(), key.display())]
    Pair {
        certificate: PathBuf,
        key: PathBuf,
        source: rustls::Error,
    },
    #[error("{} contains an invalid CA certificate", path.display())]
    ClientCa {
        path: PathBuf,
        source: rustls::Error,
    },
    #[error("failed to build a client certificate verifier from {}", path.display())]
    Verifier {
        path: PathBuf,
        source: VerifierBuilderError,
    },
    #[error("no supported TLS version")]
    Versions { source: rustls::Error },
}

/// Metadata of a file; every way of replacing the file changes it, including the symlink swap of a Secret volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct FileStat {
    inode: (u64, u64),
    modified: (i64, i64),
    changed: (i64, i64),
    size: u64,
}

/// Metadata of all files; `None` for a missing one.
type FileStats = [Option<FileStat>; 3];

/// The current certificates and their files.
#[derive(Debug)]
pub(super) struct ServerCertificates {
    files: ServerTlsFiles,
    loaded: Mutex<LoadedCertificates>,
}

#[derive(Debug)]
struct LoadedCertificates {
    config: Arc<ServerConfig>,
    /// Metadata of the files that `config` was built from.
    stats: FileStats,
    /// Metadata of files that were invalid, so that this is logged once.
    rejected: Option<FileStats>,
    checked_at: Instant,
}

impl ServerCertificates {
    /// Loads the files. Fails if they are invalid: unlike in a reload there are no previous certificates to fall back to.
    pub(super) fn load(files: ServerTlsFiles) -> Result<Self, TlsError> {
        let stats = stat_files(&files);
        let loaded = LoadedCertificates {
            config: Arc::new(read_config(&files)?),
            stats,
            rejected: None,
            checked_at: Instant::now(),
        };
        let loaded = Mutex::new(loaded);
        Ok(Self { files, loaded })
    }

    /// Configuration for a new connection; checks the files first if a check is due.
    pub(super) async fn current_config(self: &Arc<Self>) -> Arc<ServerConfig> {
        if self.is_check_due() {
            let this = Arc::clone(self);
            let checked = tokio::task::spawn_blocking(move || this.reload_if_changed());
            if let Err(error) = checked.await {
                warn!(error = %error, "certificate check did not finish");
            }
        }
        Arc::clone(&self.lock().config)
    }

    /// Whether a check is due. Marks it as done, so that one of many concurrent connections does it.
    fn is_check_due(&self) -> bool {
        let mut held = self.lock();
        let is_due = held.checked_at.elapsed() >= RECHECK_INTERVAL;
        if is_due {
            held.checked_at = Instant::now();
        }
        is_due
    }

    /// Reloads the files if they changed. The metadata is read first: a file that changes during the reload differs again
    /// at the next check.
    fn reload_if_changed(&self) {
        let looks = stat_files(&self.files);
        if self.lock().stats == looks {
            return;
        }
        match read_config(&self.files) {
            Ok(config) => {
                let mut held = self.lock();
                held.config = Arc::new(config);
                held.stats = looks;
                held.rejected = None;
                info!("certificates of the HTTP server reloaded");
            }
            Err(error) => {
                let mut held = self.lock();
                if held.rejected != Some(looks) {
                    held.rejected = Some(looks);
                    warn!(error = %ErrorChain(&error), "invalid certificates, keeping the previous ones");
                }
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, LoadedCertificates> {
        self.loaded.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn stat_files(files: &ServerTlsFiles) -> FileStats {
    let look = |path: &Path| {
        let found = fs::metadata(path).ok()?;
        Some(FileStat {
            inode: (found.dev(), found.ino()),
            modified: (found.mtime(), found.mtime_nsec()),
            changed: (found.ctime(), found.ctime_nsec()),
            size: found.size(),
        })
    };
    let client_ca = files.client_ca.as_deref();
    [
        look(&files.certificate),
        look(&files.key),
        client_ca.and_then(look),
    ]
}

fn read_config(files: &ServerTlsFiles) -> Result<ServerConfig, TlsError> {
    let provider = Arc::new(aws_lc_rs::default_provider());
    let chain = read_certificates(&files.certificate)?;
    let key = read_key(&files.key)?;
    let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()
        .map_err(|source| TlsError::Versions { source })?;
    let builder = match &files.client_ca {
        None => builder.with_no_client_auth(),
        Some(path) => builder.with_client_cert_verifier(build_verifier(path, provider)?),
    };
    let pair = builder.with_single_cert(chain, key);
    let mut config = pair.map_err(|source| TlsError::Pair {
        certificate: files.certificate.clone(),
        key: files.key.clone(),
        source,
    })?;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(config)
}

/// Verifies the client certificate if one is presented. Clients without one may connect: `routes` checks per path,
/// because kubelet's probes come without.
fn build_verifier(
    path: &Path,
    provider: Arc<CryptoProvider>,
) -> Result<Arc<dyn rustls::server::danger::ClientCertVerifier>, TlsError> {
    let mut roots = RootCertStore::empty();
    for certificate in read_certificates(path)? {
        let added = roots.add(certificate);
        added.map_err(|source| TlsError::ClientCa {
            path: path.to_owned(),
            source,
        })?;
    }
    WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider)
        .allow_unauthenticated()
        .build()
        .map_err(|source| TlsError::Verifier {
            path: path.to_owned(),
            source,
        })
}

fn read_certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let bytes = read_file(path)?;
    let certificates = CertificateDer::pem_slice_iter(&bytes).collect::<Result<Vec<_>, _>>();
    let certificates = certificates.map_err(|source| TlsError::Pem {
        path: path.to_owned(),
        what: "certificate",
        source,
    })?;
    if certificates.is_empty() {
        return Err(TlsError::NoCertificate {
            path: path.to_owned(),
        });
    }
    Ok(certificates)
}

fn read_key(path: &Path) -> Result<PrivateKeyDer<'static>, TlsError> {
    PrivateKeyDer::from_pem_slice(&read_file(path)?).map_err(|source| TlsError::Pem {
        path: path.to_owned(),
        what: "private key",
        source,
    })
}

fn read_file(path: &Path) -> Result<Vec<u8>, TlsError> {
    let failed = |source| TlsError::Read {
        path: path.to_owned(),
        source,
    };
    let mut bytes = Vec::new();
    let file = File::open(path).map_err(failed)?;
    let mut limited = file.take(MAX_FILE_BYTES + 1);
    limited.read_to_end(&mut bytes).map_err(failed)?;
    if bytes.len() as u64 > MAX_FILE_BYTES {
        return Err(TlsError::TooLarge {
            path: path.to_owned(),
        });
    }
    Ok(bytes)
}
