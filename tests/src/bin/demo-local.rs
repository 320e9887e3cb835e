//! `make demo-local`: three etcd servers with sidecars, a lost quorum, a bad delete, and two restores.
//!
//! Each step says what it does and why, runs the real programs, and proves the result with the hash a live etcd
//! computes over its whole history.

use std::fmt::Write as _;
use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context, ensure};
use etcd_client::DeleteOptions;
use mainstay_tests::local::{Local, Proof};
use mainstay_tests::story::{self, say, to_its_end};

#[tokio::main]
async fn main() -> ExitCode {
    // Boxed, since it takes a lot of room. Servers and sidecars have ended with it.
    let ended = Box::pin(to_its_end(tell())).await;
    ended.explain("demo-local");
    ended.exit_code()
}

async fn tell() -> anyhow::Result<()> {
    let home = tempfile::tempdir().context("make a directory for the demo")?;
    let mut story = Story::begin(home.path()).await?;
    story.backups_follow_the_leader().await?;
    story.quorum_is_lost().await?;
    story.somebody_deletes().await?;
    story.tell(
        "What to try next",
        "make demo                        the same with Kubernetes: the controller does all of this by itself\n\
         mainstay-restorer --help          every verb, with examples\n\
         mainstay-sidecar --help           how backups are taken\n\
         docs/README.md                   every page, by task",
    )
}

struct Story {
    local: Local,
    story: story::Story,
}

impl Story {
    async fn begin(home: &Path) -> anyhow::Result<Self> {
        let mut story = story::Story::default();
        story.tell(
            "Three etcd servers, and a sidecar beside each",
            "The sidecar whose own etcd leads takes the backups: a full snapshot, then deltas every second.",
        )?;
        let local = Local::start(home).await;
        let leads = local.backup_leader().await?;
        say(&format!("The sidecar of m{leads} takes the backups."))?;
        local.write(0..2_000).await?;
        local.backed_up().await?;
        let story = Self { local, story };
        story.run(&["list".to_owned()], 0)?;
        Ok(story)
    }

    fn tell(&mut self, title: &str, text: &str) -> anyhow::Result<()> {
        self.story.tell(title, text)
    }

    async fn backups_follow_the_leader(&mut self) -> anyhow::Result<()> {
        self.tell(
            "The leader dies",
            "kill -9. The other two elect a new leader, and its sidecar goes on where the last one was.",
        )?;
        let before = self.local.backup_leader().await?;
        self.local.kill(before);
        let now = self.local.cluster.leader_after(before).await;
        let leads = self.local.backup_leader().await?;
        say(&format!(
            "m{now} leads; the sidecar of m{leads} takes the backups."
        ))?;
        self.local.write(2_000..3_000).await?;
        self.local.backed_up().await?;
        self.run(&["verify".to_owned()], 0)
    }

    /// Two disks of three are gone.
    async fn quorum_is_lost(&mut self) -> anyhow::Result<()> {
        let before = self.local.proof().await?;
        say(&format!("\nBoth members that live answer: {before}"))?;
        self.tell(
            "Disaster: a second disk is gone, and with it the quorum",
            "One member of three is left. It will never answer a write again.",
        )?;
        let last = self.local.cluster.leader().await;
        for member in (0..3).filter(|member| *member != last) {
            self.local.lose(member)?;
        }
        self.local.stop().await;

        self.tell(
            "Recovery: a new cluster from the backup",
            "The restorer writes the directory of each member; no etcd takes part. It compares the result with the hash the \
             live etcd gave before, and would refuse anything else. What is left of the old cluster is kept beside.",
        )?;
        let expected = format!("--expect-hash-kv={}", before.hash);
        self.restore("after-the-loss", &[expected])?;
        let after = self.prove(&before).await?;
        say(&format!("before: {before}\nafter:  {after}"))?;
        say("Three members, same revision, same keys, same hash over every version of every key.")
    }

    /// Nothing is broken, but data is gone.
    async fn somebody_deletes(&mut self) -> anyhow::Result<()> {
        self.tell(
            "Disaster: somebody deletes the wrong prefix",
            "Everything works, the backup goes on, and it faithfully records the mistake.",
        )?;
        self.local.backup_leader().await?;
        self.local.write(0..200).await?;
        let good = self.local.proof().await?;
        let options = DeleteOptions::new().with_prefix();
        let mut client = self.local.member()?.client().await;
        let deleted = client.delete("/registry/", Some(options)).await;
        let deleted = deleted.context("delete")?.deleted();
        self.local.backed_up().await?;
        say(&format!(
            "before the delete: {good}\n{deleted} keys are gone"
        ))?;
        self.local.stop().await;

        self.tell(
            "Recovery to a point in time",
            "We restore the revision before the delete.",
        )?;
        let to = format!("--to-revision={}", good.hash.revision);
        self.restore("before-the-delete", &[to])?;
        let after = self.prove(&good).await?;
        say(&format!("restored:          {after}"))
    }

    /// Makes the directories of all members of a new cluster.
    fn restore(&self, token: &str, how: &[String]) -> anyhow::Result<()> {
        for member in 0..3 {
            let seat = self.local.seat(member, token);
            let arguments = [&["restore".to_owned()], how, &seat].concat();
            self.run(&arguments, 0)?;
        }
        Ok(())
    }

    /// The servers start on what was restored, and hold what was there before.
    async fn prove(&mut self, before: &Proof) -> anyhow::Result<Proof> {
        self.tell(
            "Proof",
            "Three real etcd servers start on the restored directories.",
        )?;
        self.local.start_again().await?;
        let after = self.local.proof().await?;
        ensure!(
            after == *before,
            "restored is {after}, and {before} was backed up"
        );
        Ok(after)
    }

    /// Runs the restorer on the demo's bucket and shows what it prints.
    fn run(&self, arguments: &[String], expected: i32) -> anyhow::Result<()> {
        let output = self.local.restorer(arguments)?;
        let mut shown = format!("\n  $ mainstay-restorer {}\n", arguments.join(" "));
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
}
