//! Credential fields from a JSON file or from a directory with one file per field.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use crate::config::{StorageProvider, StoreRole};
use crate::environment::Environment;
use crate::secret::Secret;

/// Maximum size of a credential file; bounds memory if the path is wrong.
const MAX_FILE_BYTES: u64 = 1 << 20;

/// Credentials are missing or invalid. Never contains a value.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CredentialError {
    /// A credential file cannot be read.
    #[error("read credential file {} (from {variable})", path.display())]
    ReadFile {
        /// The variable that names the file or directory.
        variable: String,
        /// The file.
        path: PathBuf,
        /// The operating system's error.
        source: io::Error,
    },
    /// The credential directory cannot be listed.
    #[error("list credential directory {} (from {variable})", path.display())]
    ListDirectory {
        /// The variable that names the file or directory.
        variable: String,
        /// The directory.
        path: PathBuf,
        /// The operating system's error.
        source: io::Error,
    },
    /// A credential file exceeds 1 MiB.
    #[error("credential file {} (from {variable}) exceeds 1 MiB", path.display())]
    TooLarge {
        /// The variable that names the file or directory.
        variable: String,
        /// The file.
        path: PathBuf,
    },
    /// The file is not a JSON object.
    #[error(
        "credential file {} (from {variable}): invalid JSON object at line {line}, column {column}",
        path.display()
    )]
    InvalidJson {
        /// The variable that names the file or directory.
        variable: String,
        /// The file.
        path: PathBuf,
        /// Line at which parsing failed, from 1.
        line: usize,
        /// Column at which parsing failed, from 1.
        column: usize,
    },
    /// The file is not UTF-8.
    #[error("credential file {} (from {variable}) is not UTF-8 text", path.display())]
    NotUtf8 {
        /// The variable that names the file or directory.
        variable: String,
        /// The file.
        path: PathBuf,
    },
    /// A required field is missing or empty.
    #[error("missing field `{field}` in {} (from {variable})", path.display())]
    MissingField {
        /// The variable that names the file or directory.
        variable: String,
        /// File or directory searched.
        path: PathBuf,
        /// The field.
        field: &'static str,
    },
    /// A field has an invalid value.
    #[error("invalid field `{field}` in {} (from {variable}): must be {expected}", path.display())]
    InvalidField {
        /// The variable that names the file or directory.
        variable: String,
        /// File or directory read.
        path: PathBuf,
        /// The field.
        field: &'static str,
        /// Description of valid values.
        expected: &'static str,
    },
    /// A required variable is not set.
    #[error("provider {provider} requires credentials: set {variable}")]
    UnsetVariable {
        /// The provider.
        provider: StorageProvider,
        /// The variable to set.
        variable: String,
    },
    /// A variable has an invalid value.
    #[error("invalid variable {variable}: must be {expected}")]
    InvalidVariable {
        /// The variable.
        variable: String,
        /// Description of valid values.
        expected: &'static str,
    },
}

/// Modification times and sizes of the credential files; differs after a file was replaced.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CredentialFingerprint(Vec<(PathBuf, Option<(SystemTime, u64)>)>);

impl CredentialFingerprint {
    fn from_files(files: impl IntoIterator<Item = PathBuf>) -> Self {
        let state = |path: &Path| {
            let metadata = fs::metadata(path).ok()?;
            Some((metadata.modified().ok()?, metadata.len()))
        };
        Self(
            files
                .into_iter()
                .map(|path| (path.clone(), state(&path)))
                .collect(),
        )
    }

    /// Number of files covered; 0 if the identity is ambient.
    pub fn file_count(&self) -> usize {
        self.0.len()
    }
}

/// The credential variable without role prefix; `None` if the provider reads no credential files.
pub(super) fn variable_stem(provider: StorageProvider) -> Option<&'static str> {
    match provider {
        StorageProvider::S3 => Some("AWS_APPLICATION_CREDENTIALS"),
        StorageProvider::Abs => Some("AZURE_APPLICATION_CREDENTIALS"),
        StorageProvider::Gcs => Some("GOOGLE_APPLICATION_CREDENTIALS"),
        StorageProvider::Swift => Some("OPENSTACK_APPLICATION_CREDENTIALS"),
        StorageProvider::Oss => Some("ALICLOUD_APPLICATION_CREDENTIALS"),
        StorageProvider::Ocs => Some("OPENSHIFT_APPLICATION_CREDENTIALS"),
        StorageProvider::Local | StorageProvider::Ecs => None,
    }
}

/// Fingerprints the credential files. Unreadable files count as absent; the next open reports the error.
pub(crate) fn fingerprint_credentials(
    env: &Environment,
    role: StoreRole,
    provider: StorageProvider,
) -> CredentialFingerprint {
    let Some(variable_stem) = variable_stem(provider) else {
        return CredentialFingerprint(Vec::new());
    };
    let files = match CredentialLocation::find(env, role, variable_stem, provider) {
        None => Vec::new(),
        Some(CredentialLocation {
            format: CredentialFormat::Json,
            path,
            ..
        }) => vec![path],
        Some(source) => match source.list_files() {
            Ok(files) => files,
            Err(_) => vec![source.path],
        },
    };
    CredentialFingerprint::from_files(files)
}

enum CredentialFormat {
    Json,
    Directory,
    /// A JSON file with further fields in sibling files (Google).
    JsonWithSiblings,
}

struct CredentialLocation {
    variable: String,
    path: PathBuf,
    format: CredentialFormat,
}

impl CredentialLocation {
    fn find(
        env: &Environment,
        role: StoreRole,
        variable_stem: &str,
        provider: StorageProvider,
    ) -> Option<Self> {
        let plain = format!("{}{variable_stem}", role.variable_prefix());
        // Google's own tools define GOOGLE_APPLICATION_CREDENTIALS as a file, not a directory.
        if provider == StorageProvider::Gcs {
            let path = PathBuf::from(env.get(&plain)?);
            return Some(Self {
                variable: plain,
                path,
                format: CredentialFormat::JsonWithSiblings,
            });
        }
        let json = format!("{plain}_JSON");
        // The JSON variable has precedence over the directory, as in etcd-backup-restore.
        if let Some(path) = env.get(&json) {
            return Some(Self {
                variable: json,
                path: path.into(),
                format: CredentialFormat::Json,
            });
        }
        let path = PathBuf::from(env.get(&plain)?);
        Some(Self {
            variable: plain,
            path,
            format: CredentialFormat::Directory,
        })
    }

    /// The credential files, in name order.
    fn list_files(&self) -> io::Result<Vec<PathBuf>> {
        let directory = match self.format {
            CredentialFormat::Json => return Ok(vec![self.path.clone()]),
            CredentialFormat::Directory => self.path.as_path(),
            CredentialFormat::JsonWithSiblings => {
                let siblings = ["projectID", "storageAPIEndpoint", "token"];
                let beside = siblings.map(|name| self.path.with_file_name(name));
                let present = beside.into_iter().filter(|path| path.is_file());
                return Ok([self.path.clone()].into_iter().chain(present).collect());
            }
        };
        let mut files = Vec::new();
        for entry in fs::read_dir(directory)? {
            let entry = entry?;
            // The kubelet swaps Secret volumes through hidden entries (`..data`), which are not fields.
            let hidden = entry.file_name().to_string_lossy().starts_with('.');
            if !hidden && entry.path().is_file() {
                files.push(entry.path());
            }
        }
        files.sort();
        Ok(files)
    }
}

/// Credential fields and their origin.
#[derive(Debug)]
pub(super) struct CredentialFields {
    variable: String,
    path: PathBuf,
    values: BTreeMap<String, Secret>,
}

impl CredentialFields {
    /// Reads the fields of `provider`; `None` if no credential variable is set.
    pub(super) fn find(
        env: &Environment,
        role: StoreRole,
        provider: StorageProvider,
    ) -> Result<Option<Self>, CredentialError> {
        let Some(variable_stem) = variable_stem(provider) else {
            return Ok(None);
        };
        let Some(source) = CredentialLocation::find(env, role, variable_stem, provider) else {
            return Ok(None);
        };
        match source.format {
            CredentialFormat::Json | CredentialFormat::JsonWithSiblings => {
                Self::from_json(source.variable, source.path).map(Some)
            }
            CredentialFormat::Directory => Self::from_directory(source).map(Some),
        }
    }

    fn from_directory(source: CredentialLocation) -> Result<Self, CredentialError> {
        let entries = source
            .list_files()
            .map_err(|error| CredentialError::ListDirectory {
                variable: source.variable.clone(),
                path: source.path.clone(),
                source: error,
            })?;
        let is_json = |path: &&PathBuf| path.extension().is_some_and(|suffix| suffix == "json");
        // A `.json` file in the directory has precedence over single fields, as in etcd-backup-restore.
        if let Some(json) = entries.iter().find(is_json) {
            return Self::from_json(source.variable, json.clone());
        }
        let mut values = BTreeMap::new();
        for path in entries {
            let Some(name) = path.file_name().and_then(|name| name.to_str()) else {
                continue;
            };
            values.insert(name.to_owned(), read_secret(&source.variable, &path)?);
        }
        Ok(Self {
            variable: source.variable,
            path: source.path,
            values,
        })
    }

    fn from_json(variable: String, path: PathBuf) -> Result<Self, CredentialError> {
        let text = read_secret(&variable, &path)?;
        let parsed: Result<serde_json::Map<String, serde_json::Value>, _> =
            serde_json::from_str(text.expose());
        let members = match parsed {
            Ok(members) => members,
            Err(error) => {
                let (line, column) = (error.line(), error.column());
                // The JSON error itself is dropped: its message may quote a secret.
                return Err(CredentialError::InvalidJson {
                    variable,
                    path,
                    line,
                    column,
                });
            }
        };
        let scalar = |value: serde_json::Value| match value {
            serde_json::Value::String(text) => Some(Secret::new(text)),
            serde_json::Value::Bool(value) => Some(Secret::new(value.to_string())),
            serde_json::Value::Number(value) => Some(Secret::new(value.to_string())),
            _ => None,
        };
        let values = members
            .into_iter()
            .filter_map(|(name, value)| Some((name, scalar(value)?)))
            .collect();
        Ok(Self {
            variable,
            path,
            values,
        })
    }

    /// The path of file `name` beside the credential file, or inside the credential directory.
    pub(super) fn sibling_path(&self, name: &str) -> PathBuf {
        if self.path.is_dir() {
            self.path.join(name)
        } else {
            self.path.with_file_name(name)
        }
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// The content of a file beside the credential file; `None` if it does not exist.
    pub(super) fn read_sibling(&self, name: &str) -> Result<Option<Secret>, CredentialError> {
        let path = self.sibling_path(name);
        if path.is_file() {
            read_secret(&self.variable, &path).map(Some)
        } else {
            Ok(None)
        }
    }

    pub(super) fn contains(&self, name: &str) -> bool {
        self.values.contains_key(name)
    }

    pub(super) fn get_optional(&self, name: &str) -> Option<Secret> {
        self.values
            .get(name)
            .filter(|value| !value.is_empty())
            .cloned()
    }

    pub(super) fn get_required(&self, field: &'static str) -> Result<Secret, CredentialError> {
        self.get_optional(field)
            .ok_or_else(|| CredentialError::MissingField {
                variable: self.variable.clone(),
                path: self.path.clone(),
                field,
            })
    }

    pub(super) fn get_flag(&self, field: &'static str) -> Result<bool, CredentialError> {
        match self.get_optional(field) {
            None => Ok(false),
            Some(value) => parse_flag(value.expose())
                .ok_or_else(|| self.invalid_field(field, "`true` or `false`")),
        }
    }

    pub(super) fn invalid_field(
        &self,
        field: &'static str,
        expected: &'static str,
    ) -> CredentialError {
        CredentialError::InvalidField {
            variable: self.variable.clone(),
            path: self.path.clone(),
            field,
            expected,
        }
    }
}

pub(super) fn parse_flag(text: &str) -> Option<bool> {
    match text.trim().to_ascii_lowercase().as_str() {
        "true" | "1" | "t" => Some(true),
        "false" | "0" | "f" => Some(false),
        _ => None,
    }
}

fn read_secret(variable: &str, path: &Path) -> Result<Secret, CredentialError> {
    let mut bytes = Vec::new();
    fs::File::open(path)
        .and_then(|file| file.take(MAX_FILE_BYTES + 1).read_to_end(&mut bytes))
        .map_err(|source| CredentialError::ReadFile {
            variable: variable.to_owned(),
            path: path.to_owned(),
            source,
        })?;
    if bytes.len() as u64 > MAX_FILE_BYTES {
        let (variable, path) = (variable.to_owned(), path.to_owned());
        return Err(CredentialError::TooLarge { variable, path });
    }
    let text = String::from_utf8(bytes).map_err(|_| CredentialError::NotUtf8 {
        variable: variable.to_owned(),
        path: path.to_owned(),
    })?;
    // Editors and `kubectl create secret --from-file` keep a trailing newline, which breaks signatures.
    let text = text.strip_suffix('\n').unwrap_or(&text);
    Ok(Secret::new(text.strip_suffix('\r').unwrap_or(text)))
}
