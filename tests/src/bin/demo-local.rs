//! `make demo-local`: the story of a backup, two disasters and two restores, with a real etcd.
//!
//! Each step says what it does and why, runs the real program, and proves the result with the hash
//! a live etcd computes over its whole history.

use std::fmt::Write as _;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use anyhow::{Context, ensure};
use etcd_client::{DeleteOptions, PutOptions};
use steward_ids::Revision;
use steward_testkit::etcd::{Etcd, EtcdOptions, EtcdVersion};
use steward_testkit::recorder::{Compression, Recorder};
use steward_tests::story::{self, say};

const CONTAINER: &str = "bucket";
const PREFIX: &str = "demo/etcd-main";

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let home = tempfile::tempdir().context("make a directory for the demo")?;
    let mut story = Story {
        home: home.path().to_owned(),
        story: story::Story::default(),
    };
    story.tell(
        "An etcd that somebody relies on",
        "We start a real etcd and write 3 000 keys, some of them on leases.",
    )?;
    let data_dir = story.home.join("default.etcd");
    let mut etcd = start(&data_dir).await;
    write_keys(&etcd, 0..3_000).await?;

    story.tell(
        "A backup",
        "One full snapshot, then three deltas: only what changed, as the sidecar writes them.",
    )?;
    let mut recorder = Recorder::start(
        &etcd,
        &story.home.join(CONTAINER),
        PREFIX,
        Compression::Gzip,
    )
    .await;
    for part in 0..3 {
        write_keys(&etcd, part * 500..part * 500 + 1_500).await?;
        recorder.cut(&etcd).await;
    }
    story.run(&["list"], 0)?;
    let before = proof(&etcd).await;
    say(&format!("The live etcd answers: {before}"))?;

    disk_rots(&mut story, &mut etcd, &data_dir, &before).await?;
    let mut etcd = start(&data_dir).await;
    somebody_deletes(&mut story, &mut etcd, &data_dir).await?;

    story.tell(
        "What to try next",
        "steward-restorer --help          every verb, with examples\n\
         steward-restorer restore --help  point in time, members of a new cluster, other stores\n\
         make bench                       how fast it is, beside etcd's own tools\n\
         docs/                            formats, exit codes, benchmarks",
    )
}

/// First disaster: bytes of the database change under a dead etcd.
async fn disk_rots(
    story: &mut Story,
    etcd: &mut Etcd,
    data_dir: &Path,
    before: &Proof,
) -> anyhow::Result<()> {
    story.tell(
        "Disaster: the disk rots",
        "etcd is killed and a few pages in the middle of its database are overwritten.",
    )?;
    etcd.kill();
    let db = data_dir.join("member/snap/db");
    let file = std::fs::File::options()
        .write(true)
        .open(&db)
        .context("open the database")?;
    for page in 20..40u64 {
        file.write_all_at(&[0xA5; 4096], page * 4096)
            .context("damage the database")?;
    }
    let directory = data_dir.display().to_string();
    story.run(&["verify", "--data-dir", &directory], 11)?;

    story.tell(
        "Recovery",
        "The restorer builds a new directory beside the damaged one and swaps them; the damaged one is kept.",
    )?;
    let peer = etcd.peer_url().to_owned();
    story.run(
        &[
            "restore",
            "--data-dir",
            &directory,
            "--initial-advertise-peer-urls",
            &peer,
        ],
        0,
    )?;
    story.run(&["verify", "--data-dir", &directory], 0)?;

    story.tell("Proof", "A real etcd starts on the restored directory.")?;
    etcd.restart().await;
    let after = proof(etcd).await;
    say(&format!("before: {before}\nafter:  {after}"))?;
    ensure!(
        after == *before,
        "the restored etcd is not the one that was backed up"
    );
    say("Same revision, same keys, same hash over every version of every key.")?;
    etcd.stop().await;
    Ok(())
}

/// Second disaster: nothing is broken, but data is gone.
async fn somebody_deletes(
    story: &mut Story,
    etcd: &mut Etcd,
    data_dir: &Path,
) -> anyhow::Result<()> {
    story.tell(
        "Disaster: somebody deletes the wrong prefix",
        "Everything works, the backup goes on, and it faithfully records the mistake.",
    )?;
    let mut recorder =
        Recorder::start(etcd, &story.home.join(CONTAINER), PREFIX, Compression::Gzip).await;
    write_keys(etcd, 0..200).await?;
    let good = proof(etcd).await;
    let options = DeleteOptions::new().with_prefix();
    etcd.client()
        .await
        .delete("/registry/", Some(options))
        .await
        .context("delete")?;
    recorder.cut(etcd).await;
    let bad = proof(etcd).await;
    say(&format!(
        "before the delete: {good}\nafter it:          {bad}"
    ))?;
    etcd.stop().await;

    story.tell(
        "Recovery to a point in time",
        "We restore the revision before the delete.",
    )?;
    let (directory, revision) = (data_dir.display().to_string(), good.revision.to_string());
    let peer = etcd.peer_url().to_owned();
    story.run(
        &[
            "restore",
            "--data-dir",
            &directory,
            "--to-revision",
            &revision,
            "--initial-advertise-peer-urls",
            &peer,
        ],
        0,
    )?;
    etcd.restart().await;
    let after = proof(etcd).await;
    say(&format!("restored:          {after}"))?;
    ensure!(
        after == good,
        "the restored etcd is not the one before the delete"
    );
    Ok(())
}

async fn start(data_dir: &Path) -> Etcd {
    Etcd::start(EtcdVersion::V3_5New, EtcdOptions::new().data_dir(data_dir)).await
}

async fn write_keys(etcd: &Etcd, numbers: std::ops::Range<u32>) -> anyhow::Result<()> {
    let mut client = etcd.client().await;
    let lease = client
        .lease_grant(3_600, None)
        .await
        .context("grant a lease")?
        .id();
    for number in numbers {
        let key = format!("/registry/pods/default/pod-{number}");
        let value = format!("{{\"kind\":\"Pod\",\"number\":{number}}}");
        let options = number
            .is_multiple_of(50)
            .then(|| PutOptions::new().with_lease(lease));
        client.put(key, value, options).await.context("put a key")?;
    }
    Ok(())
}

/// What the story compares: all of a key space in three numbers.
#[derive(Debug, PartialEq, Eq)]
struct Proof {
    revision: Revision,
    keys: usize,
    hash: u32,
}

impl std::fmt::Display for Proof {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "revision {}, {} keys, HashKV {}",
            self.revision, self.keys, self.hash
        )
    }
}

async fn proof(etcd: &Etcd) -> Proof {
    let revision = etcd.revision().await;
    let keys = etcd.all_keys().await.len();
    let hash = etcd.hash_kv(revision).await.hash;
    Proof {
        revision,
        keys,
        hash,
    }
}

struct Story {
    home: PathBuf,
    story: story::Story,
}

impl Story {
    fn tell(&mut self, title: &str, text: &str) -> anyhow::Result<()> {
        self.story.tell(title, text)
    }

    /// Runs the restorer on the demo's bucket and shows what it prints.
    fn run(&self, arguments: &[&str], expected: i32) -> anyhow::Result<()> {
        let output = self.restorer(arguments)?;
        let mut shown = format!("\n  $ steward-restorer {}\n", arguments.join(" "));
        let printed = [output.stdout.as_slice(), output.stderr.as_slice()].concat();
        for line in String::from_utf8_lossy(&printed).lines() {
            let _ = writeln!(shown, "  {line}");
        }
        let code = output.status.code();
        let _ = write!(shown, "  exit code {}", code.unwrap_or(-1));
        say(&shown)?;
        ensure!(code == Some(expected), "expected exit code {expected}");
        Ok(())
    }

    fn restorer(&self, arguments: &[&str]) -> anyhow::Result<Output> {
        let program = std::env::current_exe()
            .context("find this program")?
            .with_file_name("steward-restorer");
        Command::new(&program)
            .args(arguments)
            .env("HOME", &self.home)
            .env("STORAGE_CONTAINER", CONTAINER)
            .env("STEWARD_STORE_PREFIX", PREFIX)
            .env("STEWARD_LOG_LEVEL", "warn")
            .output()
            .with_context(|| format!("run {}: build it with `make build`", program.display()))
    }
}
