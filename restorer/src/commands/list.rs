//! `list`: shows the snapshots of a backup as chains.

use std::fmt::Write as _;

use clap::Args;
use mainstay_archive::catalogue::{Catalogue, SnapshotObject};
use mainstay_archive::chain::{ChainInfo, list_chains, restorable_revisions};
use mainstay_store::StoreArgs;
use mainstay_telemetry::format_bytes;
use mainstay_verdict::Verdict;
use serde::Serialize;

use crate::backup::{Backup, describe_location};
use crate::cli::CommandContext;
use crate::failure::CommandFailure;
use crate::outcome::{CommandOutcome, format_table};

/// Flags of `list`.
#[derive(Debug, Args)]
#[command(
    long_about = "Lists the snapshots of a backup as chains: each full snapshot with the deltas after it, \
        the revisions and times they cover, their sizes, and missing revisions.\n\n\
        Uses object names only and reads no object; run `verify` to check the content. Counts other objects \
        and parts of interrupted uploads; -o json lists them.",
    after_help = "Examples:\n  \
        # the chains of a bucket\n  \
        mainstay-restorer list --storage-provider S3 --store-container backups --store-prefix shoot-1/etcd-main\n\n  \
        # every object of a local store below $HOME\n  \
        mainstay-restorer list --store-container etcd-backups --long\n\n  \
        # restorable revisions, for a script\n  \
        mainstay-restorer list --store-container etcd-backups -o json | jq .restorable"
)]
pub struct ListArgs {
    #[command(flatten)]
    pub(crate) store: StoreArgs,

    /// Also list every object
    #[arg(short, long)]
    pub(crate) long: bool,
}

/// A snapshot object.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct ObjectRow {
    name: String,
    key: String,
    first_revision: i64,
    last_revision: i64,
    created: String,
    compression: String,
    bytes: u64,
    is_final: bool,
}

/// Revisions that no object contains.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct GapRow {
    from: i64,
    to: i64,
    after: String,
    before: String,
}

/// A full snapshot with its deltas; without `base`, deltas that follow no full snapshot.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct ChainRow {
    base: Option<ObjectRow>,
    deltas: Vec<ObjectRow>,
    first_revision: i64,
    last_revision: i64,
    /// Last revision that can be reached from the base without a gap.
    reaches: Option<i64>,
    first_created: String,
    last_created: String,
    gaps: Vec<GapRow>,
    bytes: u64,
    is_final: bool,
}

#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct ForeignRow {
    key: String,
    bytes: u64,
    reason: String,
}

#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct ChunkRow {
    key: String,
    snapshot: String,
    part: u64,
    bytes: u64,
}

#[derive(Clone, Copy, Debug, Serialize)]
struct RangeRow {
    from: i64,
    to: i64,
}

/// The result of `list`.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Listing {
    store: String,
    chains: Vec<ChainRow>,
    restorable: Vec<RangeRow>,
    snapshots: usize,
    bytes: u64,
    chunks: Vec<ChunkRow>,
    foreign: Vec<ForeignRow>,
}

/// Lists the backup.
pub(crate) async fn run(
    args: ListArgs,
    context: &CommandContext,
) -> Result<CommandOutcome, CommandFailure> {
    let ListArgs { store, long } = args;
    let backup = Backup::open(&store.into_config()?, &context.environment).await?;
    let listing = Listing::new(describe_location(&backup.store), &backup.catalogue);
    if backup.catalogue.is_empty() {
        let mut reason = format!("no snapshot found in {}", listing.store);
        if !listing.foreign.is_empty() {
            let _ = write!(reason, "; {} other objects found", listing.foreign.len());
        }
        let details = serde_json::to_value(&listing).unwrap_or_default();
        return Err(CommandFailure::from_reason(Verdict::NoBackup, reason)
            .with_next_step("check --store-container and --store-prefix")
            .with_details(details));
    }
    Ok(CommandOutcome::new(
        Verdict::Shown,
        listing.to_text(long),
        &listing,
    ))
}

impl Listing {
    fn new(store: String, catalogue: &Catalogue) -> Self {
        let all = || catalogue.fulls.iter().chain(&catalogue.deltas);
        let range = |(from, to): &(mainstay_ids::Revision, mainstay_ids::Revision)| RangeRow {
            from: from.0,
            to: to.0,
        };
        Self {
            store,
            chains: list_chains(catalogue)
                .iter()
                .map(ChainRow::from_chain_info)
                .collect(),
            restorable: restorable_revisions(catalogue)
                .0
                .iter()
                .map(range)
                .collect(),
            snapshots: all().count(),
            bytes: all().map(|object| object.size).sum(),
            chunks: catalogue.chunks.iter().map(ChunkRow::from_chunk).collect(),
            foreign: catalogue
                .foreign
                .iter()
                .map(ForeignRow::from_foreign)
                .collect(),
        }
    }

    fn to_text(&self, long: bool) -> String {
        let mut text = format_table(&self.chain_table());
        if long {
            text.push('\n');
            text.push_str(&format_table(&self.object_table()));
        }
        text.push('\n');
        for gap in self.chains.iter().flat_map(|chain| &chain.gaps) {
            let GapRow {
                from,
                to,
                after,
                before,
            } = gap;
            let _ = writeln!(
                text,
                "revisions {from} to {to} are missing between {after} and {before}"
            );
        }
        let ranges: Vec<String> = self
            .restorable
            .iter()
            .map(|range| format!("{} to {}", range.from, range.to))
            .collect();
        let ranges = if ranges.is_empty() {
            "none".to_owned()
        } else {
            ranges.join(", ")
        };
        let _ = writeln!(text, "restorable revisions: {ranges}");
        let _ = write!(
            text,
            "{} snapshots, {} in {}",
            self.snapshots,
            format_bytes(self.bytes),
            self.store
        );
        if !self.chunks.is_empty() {
            let bytes = self.chunks.iter().map(|chunk| chunk.bytes).sum();
            let _ = write!(
                text,
                "; {} parts of interrupted uploads ({})",
                self.chunks.len(),
                format_bytes(bytes)
            );
        }
        if !self.foreign.is_empty() {
            let _ = write!(text, "; {} other objects", self.foreign.len());
        }
        text.push('\n');
        text
    }

    fn chain_table(&self) -> Vec<Vec<String>> {
        let heading = [
            "BASE",
            "REVISIONS",
            "REACHES",
            "DELTAS",
            "FROM",
            "TO",
            "SIZE",
            "GAPS",
            "FINAL",
        ];
        let mut rows = vec![heading.map(str::to_owned).to_vec()];
        for chain in &self.chains {
            rows.push(vec![
                chain
                    .base
                    .as_ref()
                    .map_or("(none)".to_owned(), |base| base.name.clone()),
                format!("{}-{}", chain.first_revision, chain.last_revision),
                chain
                    .reaches
                    .map_or("-".to_owned(), |revision| revision.to_string()),
                chain.deltas.len().to_string(),
                chain.first_created.clone(),
                chain.last_created.clone(),
                format_bytes(chain.bytes),
                if chain.gaps.is_empty() {
                    "-".to_owned()
                } else {
                    chain.gaps.len().to_string()
                },
                if chain.is_final {
                    "final".to_owned()
                } else {
                    String::new()
                },
            ]);
        }
        rows
    }

    fn object_table(&self) -> Vec<Vec<String>> {
        let mut rows = vec![["OBJECT", "CREATED", "SIZE"].map(str::to_owned).to_vec()];
        for chain in &self.chains {
            for object in chain.base.iter().chain(&chain.deltas) {
                let size = format_bytes(object.bytes);
                rows.push(vec![object.key.clone(), object.created.clone(), size]);
            }
        }
        rows
    }
}

impl ObjectRow {
    fn from_object(object: &SnapshotObject) -> Self {
        let name = &object.name;
        Self {
            name: name.to_string(),
            key: object.key.clone(),
            first_revision: name.start.0,
            last_revision: name.last.0,
            created: name.created_at().to_string(),
            compression: name.compression.to_string(),
            bytes: object.size,
            is_final: name.is_final,
        }
    }
}

impl ChainRow {
    fn from_chain_info(info: &ChainInfo) -> Self {
        let gap = |gap: &mainstay_archive::chain::RevisionGap| GapRow {
            from: gap.from.0,
            to: gap.to.0,
            after: gap.after.to_string(),
            before: gap.before.to_string(),
        };
        Self {
            base: info.base.as_ref().map(ObjectRow::from_object),
            deltas: info.deltas.iter().map(ObjectRow::from_object).collect(),
            first_revision: info.revisions.0.0,
            last_revision: info.revisions.1.0,
            reaches: info.last_reachable.map(|revision| revision.0),
            first_created: info.times.0.to_string(),
            last_created: info.times.1.to_string(),
            gaps: info.gaps.iter().map(gap).collect(),
            bytes: info.bytes,
            is_final: info.base.as_ref().is_some_and(|base| base.name.is_final),
        }
    }
}

impl ChunkRow {
    fn from_chunk(chunk: &mainstay_archive::catalogue::Chunk) -> Self {
        Self {
            key: chunk.object.key.clone(),
            snapshot: chunk.object.name.to_string(),
            part: chunk.part,
            bytes: chunk.object.size,
        }
    }
}

impl ForeignRow {
    fn from_foreign(foreign: &mainstay_archive::catalogue::ForeignObject) -> Self {
        Self {
            key: foreign.key.clone(),
            bytes: foreign.size,
            reason: foreign.reason.to_string(),
        }
    }
}
