//! Writes an image as an archive of an OCI image layout, with labels and a compressed layer.
//!
//! The archive also has the `manifest.json` that `docker load` reads, so that every common tool accepts it.

use std::fs::File;
use std::io::{self, Write};
use std::path::Path;

use flate2::Compression;
use flate2::write::GzEncoder;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use tar::Builder;

use super::archive::{Image, ImageError, append_file, image_architecture};

const MANIFEST_TYPE: &str = "application/vnd.oci.image.manifest.v1+json";
const CONFIG_TYPE: &str = "application/vnd.oci.image.config.v1+json";
const LAYER_TYPE: &str = "application/vnd.oci.image.layer.v1.tar+gzip";
const INDEX_TYPE: &str = "application/vnd.oci.image.index.v1+json";

/// What an image says about its origin.
#[derive(Clone, Debug)]
pub struct ImageLabels {
    /// Version of the program.
    pub version: String,
    /// Commit it was built from.
    pub revision: String,
    /// Time of that commit, RFC 3339.
    pub created: String,
    /// URL of the sources.
    pub source: String,
    /// SPDX expression.
    pub licenses: String,
}

impl ImageLabels {
    fn to_json(&self, title: &str) -> Value {
        json!({
            "org.opencontainers.image.title": title,
            "org.opencontainers.image.version": self.version,
            "org.opencontainers.image.revision": self.revision,
            "org.opencontainers.image.created": self.created,
            "org.opencontainers.image.source": self.source,
            "org.opencontainers.image.licenses": self.licenses,
        })
    }
}

/// A blob of the layout, named by its digest.
struct OciBlob {
    media_type: &'static str,
    digest: String,
    bytes: Vec<u8>,
}

impl OciBlob {
    fn new(media_type: &'static str, bytes: Vec<u8>) -> Self {
        let digest = hex::encode(Sha256::digest(&bytes));
        Self {
            media_type,
            digest,
            bytes,
        }
    }

    fn descriptor(&self) -> Value {
        json!({
            "mediaType": self.media_type,
            "digest": format!("sha256:{}", self.digest),
            "size": self.bytes.len(),
        })
    }

    fn path(&self) -> String {
        format!("blobs/sha256/{}", self.digest)
    }
}

impl Image {
    /// Writes an archive of an OCI image layout; returns the digest of the manifest, `sha256:…`.
    pub fn write_oci(&self, path: &Path, labels: &ImageLabels) -> Result<String, ImageError> {
        let mut layer = Builder::new(Vec::new());
        self.append_files(&mut layer)?;
        let layer = layer.into_inner().map_err(|from| self.write_error(from))?;
        let diff_id = hex::encode(Sha256::digest(&layer));
        let layer = compress(&layer).map_err(|from| self.write_error(from))?;
        let layer = OciBlob::new(LAYER_TYPE, layer);
        let config = OciBlob::new(CONFIG_TYPE, self.oci_config(&diff_id, labels));
        let manifest = json!({
            "schemaVersion": 2, "mediaType": MANIFEST_TYPE,
            "config": config.descriptor(), "layers": [layer.descriptor()],
            "annotations": labels.to_json(self.title()),
        });
        let manifest = OciBlob::new(MANIFEST_TYPE, manifest.to_string().into_bytes());
        let written = self.write_layout(path, &manifest, &config, layer);
        written.map_err(|from| self.write_error(from))?;
        Ok(format!("sha256:{}", manifest.digest))
    }

    fn oci_config(&self, diff_id: &str, labels: &ImageLabels) -> Vec<u8> {
        let mut runtime = self.runtime_config();
        runtime["Labels"] = labels.to_json(self.title());
        let config = json!({
            "created": labels.created,
            "architecture": image_architecture(),
            "os": "linux",
            "config": runtime,
            "rootfs": {"type": "layers", "diff_ids": [format!("sha256:{diff_id}")]},
            "history": [{"created": labels.created, "created_by": "make release"}],
        });
        config.to_string().into_bytes()
    }

    fn write_layout(
        &self,
        path: &Path,
        manifest: &OciBlob,
        config: &OciBlob,
        layer: OciBlob,
    ) -> io::Result<()> {
        let mut entry = manifest.descriptor();
        entry["platform"] = json!({"os": "linux", "architecture": image_architecture()});
        entry["annotations"] = json!({
            "org.opencontainers.image.ref.name": self.tag(), "io.containerd.image.name": self.name(),
        });
        let index = json!({"schemaVersion": 2, "mediaType": INDEX_TYPE, "manifests": [entry]});
        let docker = json!([{
            "Config": config.path(), "RepoTags": [self.name()], "Layers": [layer.path()],
        }]);
        let mut files = vec![
            ("index.json".to_owned(), index.to_string().into_bytes()),
            ("manifest.json".to_owned(), docker.to_string().into_bytes()),
            (
                "oci-layout".to_owned(),
                br#"{"imageLayoutVersion":"1.0.0"}"#.to_vec(),
            ),
            (manifest.path(), manifest.bytes.clone()),
            (config.path(), config.bytes.clone()),
            (layer.path(), layer.bytes),
        ];
        files.sort();
        let mut archive = Builder::new(File::create(path)?);
        for (place, bytes) in files {
            append_file(&mut archive, Path::new(&place), 0o644, &bytes)?;
        }
        archive.into_inner()?.flush()
    }

    fn title(&self) -> &str {
        self.name().split(':').next().unwrap_or_default()
    }

    fn tag(&self) -> &str {
        self.name().split_once(':').map_or("latest", |name| name.1)
    }
}

/// Without a name and a time in the header, so that the same bytes result in the same bytes.
fn compress(bytes: &[u8]) -> io::Result<Vec<u8>> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
    encoder.write_all(bytes)?;
    encoder.finish()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::io::Read as _;

    use flate2::read::GzDecoder;
    use tar::Archive;

    use super::*;

    fn read_entries(archive: &[u8]) -> BTreeMap<String, Vec<u8>> {
        let mut found = BTreeMap::new();
        for entry in Archive::new(archive).entries().unwrap() {
            let mut entry = entry.unwrap();
            let name = entry.path().unwrap().display().to_string();
            let mut bytes = Vec::new();
            entry.read_to_end(&mut bytes).unwrap();
            found.insert(name, bytes);
        }
        found
    }

    fn write_image() -> (String, BTreeMap<String, Vec<u8>>) {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("image.oci.tar");
        let image = Image::new("sleeper:v1")
            .text("/etc/words", "some")
            .scratch("/tmp");
        let labels = ImageLabels {
            version: "1".into(),
            revision: "abc".into(),
            created: "2026-11-18T00:00:00Z".into(),
            source: "https://example.com".into(),
            licenses: "Apache-2.0".into(),
        };
        let digest = image.write_oci(&path, &labels).unwrap();
        (digest, read_entries(&std::fs::read(path).unwrap()))
    }

    #[test]
    fn index_leads_to_config_and_layer_through_matching_digests() {
        let (digest, files) = write_image();
        let json = |bytes: &[u8]| serde_json::from_slice::<Value>(bytes).unwrap();
        let blob = |descriptor: &Value| {
            let digest = descriptor["digest"].as_str().unwrap();
            let hash = digest.strip_prefix("sha256:").unwrap();
            let bytes = files[&format!("blobs/sha256/{hash}")].clone();
            assert_eq!(hex::encode(Sha256::digest(&bytes)), hash);
            assert_eq!(descriptor["size"], bytes.len());
            bytes
        };
        let entry = &json(&files["index.json"])["manifests"][0];
        assert_eq!(entry["digest"], digest);
        let manifest = json(&blob(entry));
        let config = json(&blob(&manifest["config"]));
        assert_eq!(config["config"]["User"], "65532:65532");
        let labels = &config["config"]["Labels"];
        assert_eq!(labels["org.opencontainers.image.revision"], "abc");
        let mut layer = Vec::new();
        let compressed = blob(&manifest["layers"][0]);
        GzDecoder::new(&compressed[..])
            .read_to_end(&mut layer)
            .unwrap();
        let diff_id = format!("sha256:{}", hex::encode(Sha256::digest(&layer)));
        assert_eq!(config["rootfs"]["diff_ids"], json!([diff_id]));
        let names: Vec<String> = read_entries(&layer).into_keys().collect();
        assert_eq!(names, ["etc/words", "tmp"]);
    }

    #[test]
    fn docker_manifest_names_the_same_blobs() {
        let (_, files) = write_image();
        let docker: Value = serde_json::from_slice(&files["manifest.json"]).unwrap();
        assert_eq!(docker[0]["RepoTags"], json!(["sleeper:v1"]));
        assert!(files.contains_key(docker[0]["Config"].as_str().unwrap()));
        assert!(files.contains_key(docker[0]["Layers"][0].as_str().unwrap()));
    }
}
