//! Three etcd servers on this machine, a sidecar beside each, and a directory for their backups: what the local demo is
//! told with.

use std::fmt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail, ensure};
use etcd_client::PutOptions;
use mainstay_ids::{HashKv, Revision};
use mainstay_testkit::etcd::{EtcdServer, EtcdCluster, EtcdOptions, EtcdRelease};
use mainstay_testkit::{SidecarOptions, SidecarProcess};
use tokio::time::sleep;

/// The bucket, a directory.
const CONTAINER: &str = "bucket";
/// Where in the bucket the backup is.
const PREFIX: &str = "demo/etcd-main";
/// How long anything may take.
const TIMEOUT: Duration = Duration::from_mins(1);
const POLL_INTERVAL: Duration = Duration::from_millis(100);

/// See the module.
#[derive(Debug)]
pub struct LocalCluster {
    dir: PathBuf,
    /// The servers.
    pub cluster: EtcdCluster,
    sidecars: Vec<SidecarProcess>,
}

impl LocalCluster {
    /// Starts everything below a directory.
    pub async fn start(home: &Path) -> Self {
        let options = EtcdOptions::new();
        let cluster = EtcdCluster::start(EtcdRelease::V3_5New, 3, &options).await;
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

    /// A member that answers.
    pub fn running_member(&self) -> anyhow::Result<&EtcdServer> {
        let mut members = self.cluster.members.iter();
        members
            .find(|member| member.is_running())
            .context("no etcd runs")
    }

    /// Which sidecar takes the backups, once one does.
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
        bail!("no sidecar takes backups")
    }

    /// Writes keys, some of them on a lease.
    pub async fn write_keys(&self, numbers: std::ops::Range<u32>) -> anyhow::Result<()> {
        let mut client = self.running_member()?.client().await;
        let lease = client.lease_grant(3_600, None).await;
        let lease = lease.context("grant a lease")?.id();
        for number in numbers {
            let key = format!("/registry/pods/default/pod-{number}");
            let value = format!("{{\"kind\":\"Pod\",\"number\":{number}}}");
            let on_lease = number.is_multiple_of(50);
            let options = on_lease.then(|| PutOptions::new().with_lease(lease));
            client.put(key, value, options).await.context("put a key")?;
        }
        Ok(())
    }

    /// Waits until the backup holds all that was written so far.
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
        bail!("revision {written} is not in the backup")
    }

    /// Ends a member as `kill -9` does.
    pub fn kill(&mut self, member: usize) {
        self.cluster.members[member].kill();
    }

    /// Ends a member and removes its directory, as if its disk were gone.
    pub fn lose_data(&mut self, member: usize) -> anyhow::Result<()> {
        self.kill(member);
        let directory = self.cluster.members[member].data_dir();
        std::fs::remove_dir_all(directory).context("remove a data directory")
    }

    /// Ends all of it; what is on disk stays.
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

    /// The flags with which the restorer makes the directory of one member of a new cluster of three.
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

    /// Starts the servers on what is on disk, and the sidecars.
    pub async fn restart(&mut self) -> anyhow::Result<()> {
        for member in &mut self.cluster.members {
            member.relaunch();
        }
        for member in &mut self.cluster.members {
            let healthy = member.wait_until_healthy().await;
            healthy.context("a member does not come up")?;
        }
        self.start_sidecars().await;
        Ok(())
    }

    /// What every member holds, which must be the same.
    pub async fn read_fingerprint(&self) -> anyhow::Result<KeySpaceFingerprint> {
        let mut proofs = Vec::new();
        let revision = self.running_member()?.revision().await;
        for member in self.cluster.members.iter().filter(|one| one.is_running()) {
            proofs.push(KeySpaceFingerprint::read(member, revision).await);
        }
        ensure!(
            proofs.windows(2).all(|two| two[0] == two[1]),
            "members disagree: {proofs:?}"
        );
        proofs.pop().context("no etcd runs")
    }

    /// Runs the restorer on the backup.
    pub fn run_restorer(&self, arguments: &[String]) -> anyhow::Result<Output> {
        let program = program_beside("mainstay-restorer")?;
        Command::new(&program)
            .args(arguments)
            .env("HOME", &self.dir)
            .env("STORAGE_CONTAINER", CONTAINER)
            .env("MAINSTAY_STORE_PREFIX", PREFIX)
            .env("MAINSTAY_LOG_LEVEL", "warn")
            .output()
            .with_context(|| format!("run {}: build it with `make build`", program.display()))
    }
}

/// A program built beside this one.
fn program_beside(name: &str) -> anyhow::Result<PathBuf> {
    let own = std::env::current_exe().context("find this program")?;
    Ok(own.with_file_name(name))
}

/// All of a key space in three numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeySpaceFingerprint {
    /// How many keys there are.
    pub keys: usize,
    /// The hash over every version of every key.
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
