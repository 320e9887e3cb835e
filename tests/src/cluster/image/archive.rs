//! Writes an image as a docker-archive: a configuration, one layer, and a manifest.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use tar::{Builder, EntryType, Header};

use super::libraries::{LibraryError, list_libraries};

/// Default user and group of an image.
const NONROOT_USER: &str = "65532:65532";

/// Why an image could not be created.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ImageError {
    /// The libraries of a program could not be determined.
    #[error(transparent)]
    Libraries(#[from] LibraryError),
    /// A file could not be read.
    #[error("failed to read {}", path.display())]
    Read {
        /// Affected path.
        path: PathBuf,
        /// Underlying error.
        source: io::Error,
    },
    /// The archive could not be written.
    #[error("failed to write image {image}")]
    Write {
        /// Name of the image.
        image: String,
        /// Underlying error.
        source: io::Error,
    },
}

/// An entry of an image.
#[derive(Clone, Debug)]
enum ImageContent {
    /// An executable file of this machine.
    Program(PathBuf),
    /// A text file.
    Text(Vec<u8>),
    /// An empty, world-writable directory.
    Scratch,
}

/// An image to be written.
#[derive(Clone, Debug)]
pub struct Image {
    name: String,
    files: BTreeMap<PathBuf, ImageContent>,
    entrypoint: Vec<String>,
    user: &'static str,
}

impl Image {
    /// An empty image; `name` includes a tag.
    pub fn new(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            files: BTreeMap::new(),
            entrypoint: Vec::new(),
            user: NONROOT_USER,
        }
    }

    /// Name with tag.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Adds a program of this machine, with its libraries at the same paths.
    pub async fn program(mut self, from: &Path, to: &str) -> Result<Self, ImageError> {
        for library in list_libraries(from).await? {
            self.files
                .insert(library.clone(), ImageContent::Program(library));
        }
        self.files
            .insert(PathBuf::from(to), ImageContent::Program(from.to_owned()));
        Ok(self)
    }

    /// Adds a text file.
    #[must_use]
    pub fn text(mut self, to: &str, text: impl Into<Vec<u8>>) -> Self {
        self.files
            .insert(PathBuf::from(to), ImageContent::Text(text.into()));
        self
    }

    /// Adds an empty, world-writable directory.
    #[must_use]
    pub fn scratch(mut self, to: &str) -> Self {
        self.files.insert(PathBuf::from(to), ImageContent::Scratch);
        self
    }

    /// Sets the entrypoint.
    #[must_use]
    pub fn entrypoint(mut self, command: &[&str]) -> Self {
        self.entrypoint = command.iter().map(|&word| word.to_owned()).collect();
        self
    }

    /// Writes the archive.
    pub fn write(&self, path: &Path) -> Result<(), ImageError> {
        let layer = path.with_extension("layer");
        let failed = |source| ImageError::Write {
            image: self.name.clone(),
            source,
        };
        let digest = self.write_layer(&layer)?;
        let written = self.write_archive(path, &layer, &digest);
        fs::remove_file(&layer).map_err(failed)?;
        written.map_err(failed)
    }

    /// Writes the layer; returns its digest.
    fn write_layer(&self, path: &Path) -> Result<String, ImageError> {
        let file = File::create(path).map_err(|source| self.write_error(source))?;
        let mut layer = Builder::new(HashingWriter {
            file,
            digest: Sha256::new(),
        });
        self.append_files(&mut layer)?;
        let hashing = layer.into_inner();
        let hashing = hashing.map_err(|source| self.write_error(source))?;
        Ok(hex::encode(hashing.digest.finalize()))
    }

    pub(super) fn write_error(&self, source: io::Error) -> ImageError {
        ImageError::Write {
            image: self.name.clone(),
            source,
        }
    }

    /// Appends all files to a layer, sorted by path.
    pub(super) fn append_files<W: Write>(&self, layer: &mut Builder<W>) -> Result<(), ImageError> {
        for (place, content) in &self.files {
            // Paths in a layer are relative to the root of the image.
            let place = place.strip_prefix("/").unwrap_or(place);
            match content {
                ImageContent::Program(from) => {
                    let bytes = fs::read(from);
                    let bytes = bytes.map_err(|source| ImageError::Read {
                        path: from.clone(),
                        source,
                    })?;
                    append_file(layer, place, 0o755, &bytes)
                }
                ImageContent::Text(text) => append_file(layer, place, 0o644, text),
                ImageContent::Scratch => {
                    let mut header = tar_header(0o1777, 0);
                    header.set_entry_type(EntryType::Directory);
                    layer.append_data(&mut header, place, io::empty())
                }
            }
            .map_err(|source| self.write_error(source))?;
        }
        Ok(())
    }

    /// The runtime configuration: entrypoint, user and search path.
    pub(super) fn runtime_config(&self) -> Value {
        json!({"Entrypoint": self.entrypoint, "User": self.user, "Env": ["PATH=/bin"]})
    }

    fn write_archive(&self, path: &Path, layer: &Path, digest: &str) -> io::Result<()> {
        let config = json!({
            "architecture": image_architecture(),
            "os": "linux",
            "config": self.runtime_config(),
            "rootfs": {"type": "layers", "diff_ids": [format!("sha256:{digest}")]},
        });
        let config = config.to_string();
        let config_name = format!("{}.json", hex::encode(Sha256::digest(config.as_bytes())));
        let layer_name = format!("{digest}.tar");
        let manifest = json!([{
            "Config": config_name, "RepoTags": [self.name], "Layers": [layer_name],
        }]);
        let mut archive = Builder::new(File::create(path)?);
        append_file(
            &mut archive,
            Path::new(&config_name),
            0o644,
            config.as_bytes(),
        )?;
        let mut header = tar_header(0o644, layer.metadata()?.len());
        archive.append_data(&mut header, &layer_name, File::open(layer)?)?;
        append_file(
            &mut archive,
            Path::new("manifest.json"),
            0o644,
            manifest.to_string().as_bytes(),
        )?;
        archive.into_inner()?.flush()
    }
}

/// The architecture of this machine, as container images name it.
pub fn image_architecture() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}

fn tar_header(mode: u32, size: u64) -> Header {
    let mut header = Header::new_gnu();
    header.set_mode(mode);
    header.set_size(size);
    header.set_mtime(0);
    header.set_uid(0);
    header.set_gid(0);
    header
}

pub(super) fn append_file<W: Write>(
    tar: &mut Builder<W>,
    place: &Path,
    mode: u32,
    bytes: &[u8],
) -> io::Result<()> {
    tar.append_data(&mut tar_header(mode, bytes.len() as u64), place, bytes)
}

/// A writer that computes the digest of what is written.
struct HashingWriter {
    file: File,
    digest: Sha256,
}

impl Write for HashingWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.file.write(bytes)?;
        self.digest.update(&bytes[..written]);
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::io::Read as _;

    use tar::Archive;

    use super::*;

    fn read_entries(archive: &[u8]) -> BTreeMap<String, Vec<u8>> {
        let mut archive = Archive::new(archive);
        let read = |entry: io::Result<tar::Entry<'_, &[u8]>>| {
            let mut entry = entry.unwrap();
            let name = entry.path().unwrap().display().to_string();
            let mut bytes = Vec::new();
            entry.read_to_end(&mut bytes).unwrap();
            (name, bytes)
        };
        archive.entries().unwrap().map(read).collect()
    }

    async fn write_test_image() -> Vec<u8> {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("image.tar");
        let image = Image::new("sleeper:1")
            .text("/etc/words", "some")
            .scratch("/tmp");
        let image = image
            .program(Path::new("/bin/sleep"), "/bin/sleep")
            .await
            .unwrap();
        image
            .entrypoint(&["/bin/sleep", "infinity"])
            .write(&path)
            .unwrap();
        fs::read(path).unwrap()
    }

    #[tokio::test]
    async fn manifest_references_config_and_layer_with_matching_digest() {
        let archive = read_entries(&write_test_image().await);
        let manifest: Value = serde_json::from_slice(&archive["manifest.json"]).unwrap();
        assert_eq!(manifest[0]["RepoTags"][0], "sleeper:1");
        let config = &archive[manifest[0]["Config"].as_str().unwrap()];
        let layer = &archive[manifest[0]["Layers"][0].as_str().unwrap()];
        let config: Value = serde_json::from_slice(config).unwrap();
        let digest = format!("sha256:{}", hex::encode(Sha256::digest(layer)));
        assert_eq!(config["rootfs"]["diff_ids"][0], digest);
        assert_eq!(config["config"]["User"], "65532:65532");
    }

    #[tokio::test]
    async fn layer_contains_only_the_files_and_their_libraries() {
        let archive = read_entries(&write_test_image().await);
        let layer = archive
            .iter()
            .find(|(name, _)| name.contains(".tar"))
            .unwrap()
            .1;
        let libraries = list_libraries(Path::new("/bin/sleep")).await.unwrap();
        let relative = |path: &PathBuf| path.display().to_string()[1..].to_owned();
        let mut expected: BTreeSet<String> = libraries.iter().map(relative).collect();
        expected.extend(["bin/sleep", "etc/words", "tmp"].map(str::to_owned));
        let found: BTreeSet<String> = read_entries(layer).into_keys().collect();
        assert_eq!(found, expected);
    }

    #[tokio::test]
    async fn same_files_produce_the_same_archive() {
        assert!(write_test_image().await == write_test_image().await);
    }
}
