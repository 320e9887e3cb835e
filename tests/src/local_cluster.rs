//! Three etcd servers on this machine, each with a sidecar, and a directory for their backups: the setup of
//! `make demo-local`.

use std::fmt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail, ensure};
use etcd_client::PutOptions;
use mainstay_ids::{HashKv, Revision};
use mainstay_testkit::etcd::{EtcdCluster, EtcdOptions, EtcdRelease, EtcdServer};
use mainstay_testkit::{SidecarOptions, SidecarProcess};
use tokio::time::sleep;

/// The name of the bucket, a directory.
const CONTAINER: &str = "bucket";
const PREFIX: &str = "demo/etcd-main";
/// Timeout of every wait.
const TIMEOUT: Duration = Duration::from_mins(1);
const POLL_INTERVAL: Duration = Duration::from_millis(100);

/// The running servers and sidecars; dropping it stops them.
#[derive(Debug)]
pub struct LocalCluster {
    dir: PathBuf,
    /// The etcd servers.
    pub cluster: EtcdCluster,
    sidecars: Vec<SidecarProcess>,
}

impl LocalCluster {
    /// Starts servers and sidecars; the backups go below `home`.
    pub async fn start(home: &Path) -> Self {
        let options = EtcdOptions::new();
        let cluster = EtcdCluster::start(EtcdRelease::NEWEST, 3, &options).await;
        let mut local = Self {
            dir: home.to_owned(),
            cluster,
            sidecars: Vec::new(),
        };
        local.start_sidecars().await;
        local
    }

    async fn start_sidecars(&mut self) {
        let home = self.dir.display().to_string();
        for member in &self.cluster.members {
            let options = SidecarOptions::for_member(member.client_url())
                .flag("storage-provider", "Local")
                .flag("store-container", CONTAINER)
                .flag("store-prefix", PREFIX)
                .flag("delta-snapshot-period", "1s")
                .flag("reelection-period", "1s")
                .variable("HOME", &home);
            self.sidecars.push(SidecarProcess::start(options).await);
        }
    }

    /// The first running member.
    pub fn running_member(&self) -> anyhow::Result<&EtcdServer> {
        let mut members = self.cluster.members.iter();
        members
            .find(|member| member.is_running())
            .context("no etcd is running")
    }

    /// Waits until a sidecar takes the backups; returns its index.
    pub async fn wait_for_backup_leader(&self) -> anyhow::Result<usize> {
        let deadline = Instant::now() + TIMEOUT;
        while Instant::now() < deadline {
            for (index, sidecar) in self.sidecars.iter().enumerate() {
                if self.cluster.members[index].is_running() && sidecar.is_leader().await {
                    return Ok(index);
                }
            }
            sleep(POLL_INTERVAL).await;
        }
        bail!("no sidecar became backup leader within {TIMEOUT:?}")
    }

    /// Writes keys, every 50th with a lease.
    pub async fn write_keys(&self, numbers: std::ops::Range<u32>) -> anyhow::Result<()> {
        let mut client = self.running_member()?.client().await;
        let lease = client.lease_grant(3_600, None).await;
        let lease = lease.context("failed to grant a lease")?.id();
        for number in numbers {
            let key = format!("/registry/pods/default/pod-{number}");
            let value = format!("{{\"kind\":\"Pod\",\"number\":{number}}}");
            let on_lease = number.is_multiple_of(50);
            let options = on_lease.then(|| PutOptions::new().with_lease(lease));
            client
                .put(key, value, options)
                .await
                .context("failed to put a key")?;
        }
        Ok(())
    }

    /// Waits until the backup contains the current revision.
    pub async fn wait_until_backed_up(&self) -> anyhow::Result<()> {
        let written = self.running_member()?.revision().await;
        let deadline = Instant::now() + TIMEOUT;
        while Instant::now() < deadline {
            for sidecar in &self.sidecars {
                let status = sidecar.try_status().await.unwrap_or_default();
                let newest = ["lastFull", "lastDelta"]
                    .into_iter()
                    .filter_map(|kind| status[kind]["lastRevision"].as_i64());
                if newest.max().is_some_and(|newest| newest >= written.0) {
                    return Ok(());
                }
            }
            sleep(POLL_INTERVAL).await;
        }
        bail!("revision {written} was not backed up within {TIMEOUT:?}")
    }

    /// Kills a member with SIGKILL.
    pub fn kill(&mut self, member: usize) {
        self.cluster.members[member].kill();
    }

    /// Kills a member and removes its data directory, as if its disk were lost.
    pub fn lose_data(&mut self, member: usize) -> anyhow::Result<()> {
        self.kill(member);
        let directory = self.cluster.members[member].data_dir();
        std::fs::remove_dir_all(directory).context("failed to remove a data directory")
    }

    /// Stops servers and sidecars; files stay.
    pub async fn stop(&mut self) {
        for sidecar in &mut self.sidecars {
            sidecar.stop().await;
        }
        self.sidecars.clear();
        for member in &mut self.cluster.members {
            if member.is_running() {
                member.kill();
            }
        }
    }

    /// The flags with which the restorer restores the directory of one member of a new cluster of three.
    pub fn restore_flags(&self, member: usize, token: &str) -> Vec<String> {
        let initial_members = self.cluster.members.iter().enumerate();
        let initial_members: Vec<String> = initial_members
            .map(|(index, member)| format!("m{index}={}", member.peer_url()))
            .collect();
        let own = &self.cluster.members[member];
        vec![
            format!("--data-dir={}", own.data_dir().display()),
            format!("--name=m{member}"),
            format!("--initial-cluster={}", initial_members.join(",")),
            format!("--initial-cluster-token={token}"),
            format!("--initial-advertise-peer-urls={}", own.peer_url()),
        ]
    }

    /// Starts the servers on their data directories, then the sidecars.
    pub async fn restart(&mut self) -> anyhow::Result<()> {
        for member in &mut self.cluster.members {
            member.relaunch();
        }
        for member in &mut self.cluster.members {
            let healthy = member.wait_until_healthy().await;
            healthy.context("member did not become healthy")?;
        }
        self.start_sidecars().await;
        Ok(())
    }

    /// The content of the key space; fails if running members differ.
    pub async fn read_fingerprint(&self) -> anyhow::Result<KeySpaceFingerprint> {
        let mut proofs = Vec::new();
        let revision = self.running_member()?.revision().await;
        for member in self.cluster.members.iter().filter(|one| one.is_running()) {
            proofs.push(KeySpaceFingerprint::read(member, revision).await);
        }
        ensure!(
            proofs.windows(2).all(|two| two[0] == two[1]),
            "members hold different data: {proofs:?}"
        );
        proofs.pop().context("no etcd runs")
    }

    /// Runs the restorer with the demo's store.
    pub fn run_restorer(&self, arguments: &[String]) -> anyhow::Result<Output> {
        let program = program_beside("mainstay-restorer")?;
        Command::new(&program)
            .args(arguments)
            .env("HOME", &self.dir)
            .env("STORAGE_CONTAINER", CONTAINER)
            .env("MAINSTAY_STORE_PREFIX", PREFIX)
            .env("MAINSTAY_LOG_LEVEL", "warn")
            .output()
            .with_context(|| {
                format!(
                    "failed to run {}; build it with `make build`",
                    program.display()
                )
            })
    }
}

/// The path of a program in the directory of this one.
fn program_beside(name: &str) -> anyhow::Result<PathBuf> {
    let own = std::env::current_exe().context("failed to find the path of this program")?;
    Ok(own.with_file_name(name))
}

/// Identifies the content of a key space.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeySpaceFingerprint {
    /// Number of keys.
    pub keys: usize,
    /// Hash over every version of every key.
    pub hash: HashKv,
}

impl KeySpaceFingerprint {
    async fn read(etcd: &EtcdServer, revision: Revision) -> Self {
        let answer = etcd.hash_kv(revision).await;
        Self {
            keys: etcd.all_keys_at(revision).await.len(),
            hash: HashKv {
                hash: answer.hash,
                revision,
                compact_revision: answer.compact_revision,
            },
        }
    }
}

impl fmt::Display for KeySpaceFingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { keys, hash } = self;
        write!(
            f,
            "revision {}, {keys} keys, HashKV {:08x}",
            hash.revision, hash.hash
        )
    }
}
