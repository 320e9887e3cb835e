//! `make demo-local`: three etcd servers with sidecars, a quorum loss, an accidental delete, and two restores.
//!
//! Each step prints what it does and why, runs the real programs, and verifies the result with the HashKV that a live
//! etcd computes over its whole history.

use std::fmt::Write as _;
use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context, ensure};
use etcd_client::DeleteOptions;
use mainstay_tests::demo::{self, print_text, run_to_end};
use mainstay_tests::local_cluster::{KeySpaceFingerprint, LocalCluster};

#[tokio::main]
async fn main() -> ExitCode {
    // Boxed: the future is too large for the stack. When it returns, servers and sidecars have stopped.
    let ended = Box::pin(run_to_end(run_demo())).await;
    ended.print_failure("demo-local");
    ended.exit_code()
}

async fn run_demo() -> anyhow::Result<()> {
    let home = tempfile::tempdir().context("failed to create a directory for the demo")?;
    let mut story = LocalDemo::start(home.path()).await?;
    story.kill_leader().await?;
    story.lose_quorum().await?;
    story.delete_and_restore().await?;
    story.print_step(
        "Next steps",
        "make demo                         the same on Kubernetes, where the controller does all of this\n\
         mainstay-restorer --help          the commands of the restorer\n\
         mainstay-sidecar --help           the options of backups\n\
         docs/internals/concepts.md        how backups and restores work",
    )
}

struct LocalDemo {
    local: LocalCluster,
    output: demo::DemoOutput,
}

impl LocalDemo {
    async fn start(home: &Path) -> anyhow::Result<Self> {
        let mut output = demo::DemoOutput::default();
        output.print_step(
            "Start three etcd servers, each with a sidecar",
            "The sidecar of the etcd leader takes the backups: a full snapshot, then a delta snapshot every second.",
        )?;
        let local = LocalCluster::start(home).await;
        let leads = local.wait_for_backup_leader().await?;
        print_text(&format!("The sidecar of m{leads} takes the backups."))?;
        local.write_keys(0..2_000).await?;
        local.wait_until_backed_up().await?;
        let output = Self { local, output };
        output.run_restorer(&["list".to_owned()], 0)?;
        Ok(output)
    }

    fn print_step(&mut self, title: &str, text: &str) -> anyhow::Result<()> {
        self.output.print_step(title, text)
    }

    async fn kill_leader(&mut self) -> anyhow::Result<()> {
        self.print_step(
            "Kill the leader",
            "kill -9. The other two members elect a new leader, and its sidecar continues the backup.",
        )?;
        let before = self.local.wait_for_backup_leader().await?;
        self.local.kill(before);
        let now = self.local.cluster.wait_for_new_leader(before).await;
        let leads = self.local.wait_for_backup_leader().await?;
        print_text(&format!(
            "m{now} is the new leader; the sidecar of m{leads} takes the backups."
        ))?;
        self.local.write_keys(2_000..3_000).await?;
        self.local.wait_until_backed_up().await?;
        self.run_restorer(&["verify".to_owned()], 0)
    }

    /// Removes the data of two of three members.
    async fn lose_quorum(&mut self) -> anyhow::Result<()> {
        let before = self.local.read_fingerprint().await?;
        print_text(&format!("\nBoth running members report: {before}"))?;
        self.print_step(
            "Disaster: a second member loses its disk, and the cluster its quorum",
            "One member of three is left. It cannot accept writes any more.",
        )?;
        let last = self.local.cluster.leader().await;
        for member in (0..3).filter(|member| *member != last) {
            self.local.lose_data(member)?;
        }
        self.local.stop().await;

        self.print_step(
            "Recovery: restore a new cluster from the backup",
            "The restorer writes the data directory of each member without running etcd. It compares the result with the\n\
             hash that etcd reported before the loss, and fails if they differ. The previous data directory is kept.",
        )?;
        let expected = format!("--expect-hash-kv={}", before.hash);
        self.restore_members("after-the-loss", &[expected])?;
        let after = self.verify_restored(&before).await?;
        print_text(&format!("before: {before}\nafter:  {after}"))?;
        print_text(
            "Three members with the same revision, the same keys, and the same hash over every version of every key.",
        )
    }

    /// Deletes keys by mistake and restores the revision before.
    async fn delete_and_restore(&mut self) -> anyhow::Result<()> {
        self.print_step(
            "Disaster: a user deletes the wrong prefix",
            "The cluster is healthy, and the backup continues, so it records the delete as well.",
        )?;
        self.local.wait_for_backup_leader().await?;
        self.local.write_keys(0..200).await?;
        let good = self.local.read_fingerprint().await?;
        let options = DeleteOptions::new().with_prefix();
        let mut client = self.local.running_member()?.client().await;
        let deleted = client.delete("/registry/", Some(options)).await;
        let deleted = deleted
            .context("failed to delete prefix /registry/")?
            .deleted();
        self.local.wait_until_backed_up().await?;
        print_text(&format!(
            "before the delete: {good}\n{deleted} keys deleted"
        ))?;
        self.local.stop().await;

        self.print_step(
            "Recovery to a point in time",
            "We restore the last revision before the delete.",
        )?;
        let to = format!("--to-revision={}", good.hash.revision);
        self.restore_members("before-the-delete", &[to])?;
        let after = self.verify_restored(&good).await?;
        print_text(&format!("restored:          {after}"))
    }

    /// Restores the data directories of all members of a new cluster.
    fn restore_members(&self, token: &str, how: &[String]) -> anyhow::Result<()> {
        for member in 0..3 {
            let restore_flags = self.local.restore_flags(member, token);
            let arguments = [&["restore".to_owned()], how, &restore_flags].concat();
            self.run_restorer(&arguments, 0)?;
        }
        Ok(())
    }

    /// Starts the servers on the restored directories and compares their content with `before`.
    async fn verify_restored(
        &mut self,
        before: &KeySpaceFingerprint,
    ) -> anyhow::Result<KeySpaceFingerprint> {
        self.print_step(
            "Verify",
            "Three etcd servers start on the restored data directories.",
        )?;
        self.local.restart().await?;
        let after = self.local.read_fingerprint().await?;
        ensure!(
            after == *before,
            "restored content differs: {after}, expected {before}"
        );
        Ok(after)
    }

    /// Runs the restorer on the demo's bucket and prints its output.
    fn run_restorer(&self, arguments: &[String], expected: i32) -> anyhow::Result<()> {
        let output = self.local.run_restorer(arguments)?;
        let mut shown = format!("\n  $ mainstay-restorer {}\n", arguments.join(" "));
        let printed = [output.stdout.as_slice(), output.stderr.as_slice()].concat();
        for line in String::from_utf8_lossy(&printed).lines() {
            let _ = writeln!(shown, "  {line}");
        }
        let code = output.status.code();
        let _ = write!(shown, "  exit code {}", code.unwrap_or(-1));
        print_text(&shown)?;
        ensure!(code == Some(expected), "expected exit code {expected}");
        Ok(())
    }
}
