//! Writes `crds/yaml/*.yaml` and `docs/reference/api.md` below a directory; default: this repository.

use std::path::PathBuf;
use std::{env, fs};

use anyhow::Context;

fn main() -> anyhow::Result<()> {
    let repository = concat!(env!("CARGO_MANIFEST_DIR"), "/..");
    let root = PathBuf::from(env::args_os().nth(1).unwrap_or_else(|| repository.into()));
    for file in mainstay_crds::generated::generate_files() {
        let path = root.join(&file.path);
        let parent = path
            .parent()
            .context("generated file has no parent directory")?;
        fs::create_dir_all(parent).with_context(|| format!("create {}", parent.display()))?;
        fs::write(&path, file.text).with_context(|| format!("write {}", path.display()))?;
    }
    Ok(())
}
