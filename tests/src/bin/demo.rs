//! `make demo`: runs etcd-mainstay on a real Kubernetes cluster on this machine and recovers from two disasters.
//!
//! Each step prints what it does and why. The result is verified with the HashKV that every live etcd computes over
//! its whole history. `KEEP=1` leaves the cluster running.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use mainstay_crds::{ConditionStatus, ConditionType};
use mainstay_testkit::paths::env_path;
use mainstay_tests::cluster::managed_etcd::{self, ManagedEtcd, find_condition};
use mainstay_tests::cluster::member::{read_key_space, read_key_space_at};
use mainstay_tests::cluster::{
    CONTROLLER_NAMESPACE, ClusterHome, Programs, TestCluster, diagnose, down, eventually, install,
};
use mainstay_tests::demo::{DemoOutcome, DemoOutput, print_text, print_wait, run_to_end};
use serde_json::{Value, json};
use tokio::process::Command;
use tokio::time::sleep;

const PROGRAM: &str = "demo";
const DEMO_NAMESPACE: &str = "demo";
const ETCD_NAME: &str = "main";
const POLL_INTERVAL: Duration = Duration::from_millis(100);

#[tokio::main]
async fn main() -> ExitCode {
    let home = match ClusterHome::from_env() {
        Ok(home) => home,
        Err(error) => {
            let ended = DemoOutcome::Failed(error.into());
            ended.print_failure(PROGRAM);
            return ended.exit_code();
        }
    };
    let ended = Box::pin(run_to_end(run_demo(&home))).await; // boxed: the future is too large for the stack
    ended.print_failure(PROGRAM);
    match clean_up(&home, &ended).await {
        Ok(()) => ended.exit_code(),
        Err(error) => {
            let untidy = DemoOutcome::Failed(error);
            untidy.print_failure(PROGRAM);
            untidy.exit_code()
        }
    }
}

/// Prints the state of the cluster if the demo failed, then deletes the cluster.
async fn clean_up(home: &ClusterHome, ended: &DemoOutcome) -> anyhow::Result<()> {
    if matches!(ended, DemoOutcome::Completed) && env_path("KEEP").is_some() {
        let kubeconfig = home.kubeconfig();
        return print_text(&format!(
            "\nThe cluster is still running (KEEP=1). To use it, and to delete it afterwards:\n  export KUBECONFIG={}\n  kubectl --namespace {DEMO_NAMESPACE} get etcd,pods\n  make cluster-down",
            kubeconfig.display()
        ));
    }
    // If no cluster can be found, the failure itself is all there is to print.
    if let (DemoOutcome::Failed(_), Ok(cluster)) = (ended, TestCluster::open_local(home).await) {
        let state = diagnose(&cluster.client(), DEMO_NAMESPACE).await;
        print_text(&format!("\nState of the cluster at the failure:\n{state}")).ok(); // the cluster must be deleted even if stdout is closed
    }
    down(home).await.context("failed to delete the cluster")?;
    let hint = match ended {
        DemoOutcome::Completed => " To keep it running: KEEP=1 make demo",
        _ => "",
    };
    print_text(&format!(
        "\nCluster deleted; all its processes, mounts and network devices are removed.{hint}"
    ))
}

async fn run_demo(home: &ClusterHome) -> anyhow::Result<()> {
    let mut story = DemoOutput::default();
    let programs = Programs::find()?;
    let demo = prepare_cluster(&mut story, home, &programs).await?;
    let etcd = create_etcd(&mut story, &demo).await?;
    lose_volume(&mut story, &demo, &etcd).await?;
    lose_everything(&mut story, &demo, &etcd).await?;
    story.print_step(
        "Next steps",
        "KEEP=1 make demo        the same demo; the cluster keeps running afterwards\n\
         make demo-local         sidecar and restorer without Kubernetes, in a minute\n\
         docs/                   how to install, operate and recover; reference; internals",
    )
}

struct Demo {
    cluster: TestCluster,
    kubectl: PathBuf,
}

impl Demo {
    /// Runs kubectl and prints its output.
    async fn run_kubectl(&self, arguments: &[&str]) -> anyhow::Result<()> {
        let output = Command::new(&self.kubectl)
            .arg("--kubeconfig")
            .arg(self.cluster.kubeconfig())
            .arg(format!("--namespace={DEMO_NAMESPACE}"))
            .args(arguments)
            .output()
            .await
            .context("failed to run kubectl")?;
        ensure!(
            output.status.success(),
            "kubectl {}: {}",
            arguments.join(" "),
            String::from_utf8_lossy(&output.stderr)
        );
        let text = String::from_utf8_lossy(&output.stdout);
        let shown: Vec<String> = text.lines().map(|line| format!("  {line}")).collect();
        print_text(&format!(
            "\n  $ kubectl {}\n{}",
            arguments.join(" "),
            shown.join("\n")
        ))
    }
}

/// Starts a cluster and installs the controller.
async fn prepare_cluster(
    story: &mut DemoOutput,
    home: &ClusterHome,
    programs: &Programs,
) -> anyhow::Result<Demo> {
    story.print_step(
        "Start a Kubernetes cluster",
        "API server, controller manager, scheduler, kubelet, containerd and an S3 server run in their own namespaces on\n\
         this machine. The images of etcd and of the three programs of etcd-mainstay are imported without a registry.",
    )?;
    print_wait("the cluster to become ready", 25)?;
    let this = std::env::current_exe().context("failed to find the path of this program")?;
    let brought = Command::new(this.with_file_name("cluster"))
        .arg("up")
        .env_remove("KUBECONFIG")
        .kill_on_drop(true)
        .status()
        .await;
    ensure!(
        brought
            .context("failed to run the program cluster")?
            .success(),
        "the cluster did not start; see the messages above"
    );

    story.print_step(
        "Install the controller",
        "The Helm chart installs it, as on any cluster. Of the two replicas, the one elected leader reconciles.",
    )?;
    print_text(&format!(
        "  $ helm install etcd-mainstay charts/etcd-mainstay --namespace {CONTROLLER_NAMESPACE}"
    ))?;
    print_wait("both controller replicas to become ready", 15)?;
    install(&home.kubeconfig(), programs).await?;
    let cluster = TestCluster::open_local(home).await?;
    let demo = Demo {
        cluster,
        kubectl: programs.kubernetes_program("kubectl"),
    };
    demo.run_kubectl(&["get", "pods", "--namespace", CONTROLLER_NAMESPACE])
        .await?;
    Ok(demo)
}

/// Creates an Etcd of three members, writes to it and waits for the backup.
async fn create_etcd(story: &mut DemoOutput, demo: &Demo) -> anyhow::Result<ManagedEtcd> {
    let spec = managed_etcd::etcd_spec(DEMO_NAMESPACE, ETCD_NAME, 3);
    story.print_step(
        "Create an etcd cluster",
        "Three members, with a delta snapshot to the S3 server every five seconds:",
    )?;
    print_text(&to_yaml(&spec)?)?;
    demo.run_kubectl(&["create", "namespace", DEMO_NAMESPACE])
        .await?;
    let etcd = ManagedEtcd::create(demo.cluster.client(), DEMO_NAMESPACE, ETCD_NAME, &spec).await?;
    print_wait("three members to become ready", 20)?;
    print_progress_until(&etcd, async { Ok(etcd.wait_until_settled().await?) }).await?;

    story.print_step(
        "Write to it",
        "A client sends a thousand writes through the Service and records each acknowledged write.",
    )?;
    let load = etcd.start_unpaced_load().await?;
    load.wait_for_writes(1_000).await?;
    let written = load.stop().await?;
    let held = read_key_space(&etcd.wait_for_members(3).await?).await?;
    let newest = written
        .newest_revision()
        .context("no write was acknowledged")?;
    ensure!(
        written.missing_from(&held.keys, newest).is_empty(),
        "acknowledged writes are missing"
    );
    print_text(&format!(
        "{} writes acknowledged. All three members report: {held}",
        written.count()
    ))?;
    print_wait("the backup", 5)?;
    wait_until_backed_up(&etcd).await?;
    demo.run_kubectl(&["get", "etcd", "--output", "wide"])
        .await?;
    demo.run_kubectl(&["get", "pods,persistentvolumeclaims,leases"])
        .await?;
    Ok(etcd)
}

/// Deletes the volume of a running member while a client writes.
async fn lose_volume(
    story: &mut DemoOutput,
    demo: &Demo,
    etcd: &ManagedEtcd,
) -> anyhow::Result<()> {
    story.print_step(
        "Disaster: one member loses its volume",
        "We kill one of three pods and delete its volume while a client writes. The init container of the new pod detects\n\
         that the data is lost and does not start etcd with the old member ID. The controller replaces the member.",
    )?;
    let members = etcd.wait_for_members(3).await?;
    let before = read_key_space(&members).await?;
    print_text(&format!("before: {before}"))?;
    let load = etcd.start_load().await?;
    load.wait_for_writes(100).await?;
    let [_, lost, _] = &members[..] else {
        anyhow::bail!("expected three members");
    };
    let start = Instant::now();
    etcd.delete_volume(lost).await?;
    print_wait("the controller to replace the member", 25)?;
    let complete = async {
        let members = etcd
            .wait_for_members_where(3, |member| member != lost)
            .await?;
        etcd.wait_until_settled().await?;
        Ok(members)
    };
    let members = print_progress_until(etcd, complete).await?;
    let took = start.elapsed();
    let written = load.stop().await?;

    story.print_step(
        "Verify",
        "The history before the disaster is unchanged on every member, and every acknowledged write is present.",
    )?;
    let same = read_key_space_at(&members, before.revision).await?;
    let after = read_key_space(&members).await?;
    print_text(&format!(
        "before:                    {before}\nthe same revision, now:    {same}\nnow:                       {after}"
    ))?;
    ensure!(
        same == before,
        "the history before the disaster has changed"
    );
    let newest = written
        .newest_revision()
        .context("no write was acknowledged")?;
    let missing = written.missing_from(&after.keys, newest);
    ensure!(
        missing.is_empty(),
        "acknowledged writes are lost: {missing:?}"
    );
    print_text(&format!(
        "All three members are ready {:.0} s after the loss. {} writes were acknowledged meanwhile, none is missing; \
         the longest time between two acknowledged writes was {:.1} s.",
        took.as_secs_f64(),
        written.count(),
        written.longest_gap().as_secs_f64()
    ))?;
    demo.run_kubectl(&["get", "etcd", "--output", "wide"]).await
}

/// Deletes every pod and every volume, so that only the backup is left.
async fn lose_everything(
    story: &mut DemoOutput,
    demo: &Demo,
    etcd: &ManagedEtcd,
) -> anyhow::Result<()> {
    story.print_step(
        "Disaster: all members lose their volumes",
        "No client writes now. We wait until the backup contains everything, then kill all pods and delete all volumes.\n\
         The controller confirms the loss, reports what it would restore, and waits for approval, because the backup may\n\
         be older than the lost data. We approve.",
    )?;
    let lost = etcd.wait_for_members(3).await?;
    let before = read_key_space(&lost).await?;
    etcd.wait_until_backed_up(before.revision).await?;
    print_text(&format!("before: {before}"))?;
    let start = Instant::now();
    for member in &lost {
        etcd.delete_volume(member).await?;
    }
    print_wait("the controller to confirm the loss", 65)?;
    let asked = print_progress_until(etcd, async { Ok(etcd.approve_recovery().await?) }).await?;
    print_text(&format!(
        "The controller waits for approval: {asked}\nWe approve."
    ))?;
    print_wait("three members to be restored from the backup", 35)?;
    let complete = async {
        let is_new = |member: &_| !lost.contains(member);
        let members = etcd.wait_for_members_where(3, is_new).await?;
        etcd.wait_until_settled().await?;
        Ok(members)
    };
    let members = print_progress_until(etcd, complete).await?;
    let took = start.elapsed();

    story.print_step(
        "Verify",
        "Every key has its value, revisions and version. The restore raises etcd's revision above every revision a client\n\
         may have read, and marks the history before it as compacted. Watches from before the loss therefore fail, and\n\
         clients list again. For that reason the hash differs from the one before, but it is equal on all members.",
    )?;
    let after = read_key_space(&members).await?;
    print_text(&format!("before: {before}\nafter:  {after}"))?;
    ensure!(
        after.keys == before.keys,
        "keys differ from those before the loss"
    );
    print_text(&format!(
        "All {} keys are restored unchanged, {:.0} s after all volumes were lost.",
        after.keys.len(),
        took.as_secs_f64()
    ))?;
    demo.run_kubectl(&["get", "etcd", "--output", "wide"]).await
}

/// Prints the last operation in the status whenever it changes, until `done` completes.
async fn print_progress_until<T>(
    etcd: &ManagedEtcd,
    done: impl Future<Output = anyhow::Result<T>>,
) -> anyhow::Result<T> {
    let start = Instant::now();
    let progress = async {
        let mut last = String::new();
        loop {
            let status = etcd.get().await.ok().and_then(|etcd| etcd.status);
            let now = status.and_then(|status| status.last_operation);
            let now = now.map(|operation| operation.description);
            if let Some(now) = now.filter(|now| *now != last) {
                print_text(&format!("  {:>3} s  {now}", start.elapsed().as_secs()))?;
                last = now;
            }
            sleep(POLL_INTERVAL).await;
        }
    };
    tokio::select! {
        done = done => done,
        failed = progress => failed,
    }
}

/// Waits until the condition `BackupReady` is true.
async fn wait_until_backed_up(etcd: &ManagedEtcd) -> anyhow::Result<()> {
    let is_backed_up = async || {
        let etcd = etcd.get().await.ok()?;
        let ready = find_condition(&etcd, &ConditionType::BackupReady)?;
        (ready.status == ConditionStatus::True).then_some(())
    };
    eventually("condition BackupReady to become true", is_backed_up).await?;
    Ok(())
}

fn to_yaml(spec: &Value) -> anyhow::Result<String> {
    let etcd = json!({
        "apiVersion": "druid.gardener.cloud/v1alpha1",
        "kind": "Etcd",
        "metadata": {"name": ETCD_NAME, "namespace": DEMO_NAMESPACE},
        "spec": spec,
    });
    let text = serde_norway::to_string(&etcd).context("failed to render the Etcd as YAML")?;
    let lines: Vec<String> = text.lines().map(|line| format!("  {line}")).collect();
    Ok(lines.join("\n"))
}
