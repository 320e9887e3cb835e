//! The server's certificates, read again when their files change.
//!
//! Files are looked at when a connection arrives, at most once a second. A pair that cannot be used (half written,
//! not matching, empty) is reported once and left aside: connections go on with the pair before it.

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

/// How often the files are looked at, at most.
const RECHECK_INTERVAL: Duration = Duration::from_secs(1);

/// More than any chain or bundle needs.
const MAX_FILE_BYTES: u64 = 4 << 20;

/// Why certificates cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TlsError {
    /// A file cannot be read.
    #[error("read {}", path.display())]
    Read {
        /// Which.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// A file is too large to be what it should be.
    #[error("{} has more than {MAX_FILE_BYTES} bytes", path.display())]
    TooLarge {
        /// Which.
        path: PathBuf,
    },
    /// A file is not PEM, or not of this kind.
    #[error("{} holds no readable {what}", path.display())]
    Pem {
        /// Which.
        path: PathBuf,
        /// What it should hold.
        what: &'static str,
        /// Why.
        source: pem::Error,
    },
    /// A file has no certificate in it.
    #[error("{} holds no certificate", path.display())]
    NoCertificate {
        /// Which.
        path: PathBuf,
    },
    /// The certificate and the key do not make a server.
    #[error("{} and {} are no pair", certificate.display(), key.display())]
    Pair {
        /// The certificate.
        certificate: PathBuf,
        /// The key.
        key: PathBuf,
        /// Why.
        source: rustls::Error,
    },
    /// An authority of client certificates is not one.
    #[error("{} holds an authority that cannot be used", path.display())]
    ClientCa {
        /// Which.
        path: PathBuf,
        /// Why.
        source: rustls::Error,
    },
    /// The authorities do not make a verifier.
    #[error("{} cannot verify client certificates", path.display())]
    Verifier {
        /// Which.
        path: PathBuf,
        /// Why.
        source: VerifierBuilderError,
    },
    /// The library has none of the protocol versions.
    #[error("no usable version of TLS")]
    Versions {
        /// Why.
        source: rustls::Error,
    },
}

/// What a file looked like: changes with every way of replacing it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct FileStat {
    inode: (u64, u64),
    modified: (i64, i64),
    changed: (i64, i64),
    size: u64,
}

/// How all files looked; `None` for one that is not there.
type FileStats = [Option<FileStat>; 3];

/// The certificates in use.
#[derive(Debug)]
pub(super) struct ServerCertificates {
    files: ServerTlsFiles,
    loaded: Mutex<LoadedCertificates>,
}

#[derive(Debug)]
struct LoadedCertificates {
    config: Arc<ServerConfig>,
    /// How the files looked when `config` was made of them.
    stats: FileStats,
    /// How they looked when they could not be used, so that it is said once.
    rejected: Option<FileStats>,
    checked_at: Instant,
}

impl ServerCertificates {
    /// Reads the files for the first time; here, unlike later, nothing can take the place of a broken pair.
    pub(super) fn load(files: ServerTlsFiles) -> Result<Self, TlsError> {
        let looks = stat_files(&files);
        let held = LoadedCertificates {
            config: Arc::new(read_config(&files)?),
            stats: looks,
            rejected: None,
            checked_at: Instant::now(),
        };
        let held = Mutex::new(held);
        Ok(Self { files, loaded: held })
    }

    /// What a connection that arrives now gets.
    pub(super) async fn current_config(self: &Arc<Self>) -> Arc<ServerConfig> {
        if self.is_check_due() {
            let this = Arc::clone(self);
            let checked = tokio::task::spawn_blocking(move || this.reload_if_changed());
            if let Err(error) = checked.await {
                warn!(error = %error, "checking the certificates was interrupted");
            }
        }
        Arc::clone(&self.lock().config)
    }

    /// Whether nobody looked for a while; who is told so has to.
    fn is_check_due(&self) -> bool {
        let mut held = self.lock();
        let is_due = held.checked_at.elapsed() >= RECHECK_INTERVAL;
        if is_due {
            held.checked_at = Instant::now();
        }
        is_due
    }

    /// Looks at the files, and reads them if they changed. One that changes while it is read looks different next time.
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
                info!("the certificates of the HTTP server were reloaded");
            }
            Err(error) => {
                let mut held = self.lock();
                if held.rejected != Some(looks) {
                    held.rejected = Some(looks);
                    warn!(error = %ErrorChain(&error), "new certificates cannot be used, the old ones stay");
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

/// Checks a certificate that is shown, and lets callers without one in: which paths they reach is decided there.
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
