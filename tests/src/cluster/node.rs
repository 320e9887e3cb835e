//! A test's hand on the node of the machine's own cluster: components that stop, wires that are cut, volumes
//! that are looked into. All of it happens inside the cluster's world.

use std::fs::{self, File};
use std::io;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use k8s_openapi::api::core::v1::PersistentVolume;
use rustix::process::{Pid, Signal, kill_process};
use tokio::time::{Instant, sleep};

use super::addresses::S3_PORT;
use super::components::ClusterComponent;
use super::home::ClusterHome;
use super::run::{RunError, run};
use super::world::find_holder;

/// Process 1 looks every few milliseconds, and a killed program ends at once.
const DEADLINE: Duration = Duration::from_mins(2);
const POLL_INTERVAL: Duration = Duration::from_millis(20);
/// Tells rules of tests from those of Kubernetes.
const RULE_COMMENT: &str = "mainstay-cut";

/// Why something did not happen to a node.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NodeError {
    /// The sign for process 1 could not be set or removed.
    #[error("hold or release {component}")]
    HoldFile {
        /// What is held or released.
        component: &'static str,
        /// Why.
        source: io::Error,
    },
    /// A component did not stop or start.
    #[error("{component} is not as it should be after {DEADLINE:?}")]
    Component {
        /// Which.
        component: &'static str,
    },
    /// A program of a pod was not found or not killed.
    #[error("kill {program} of pod {pod}")]
    Program {
        /// Which.
        program: &'static str,
        /// Identity of the pod.
        pod: String,
    },
    /// A rule was not set, read or removed.
    #[error("change the rules between pods")]
    Rule(#[source] RunError),
}

/// The node, as seen from the machine.
#[derive(Clone, Debug)]
pub struct LocalNode {
    home: ClusterHome,
    /// The id process 1 of its world has on this machine.
    init_pid: i32,
}

impl LocalNode {
    /// The node of a running cluster.
    pub(super) fn open(home: &ClusterHome) -> Option<Self> {
        let first = find_holder(home)?.child()?.pid();
        Some(Self {
            home: home.clone(),
            init_pid: first,
        })
    }

    /// Kills a component and keeps it from starting again.
    pub async fn stop(&self, component: ClusterComponent) -> Result<(), NodeError> {
        let set = File::create(self.home.hold_file(component));
        set.map_err(|source| NodeError::HoldFile {
            component: component.name(),
            source,
        })?;
        self.wait_for_component(component, false).await
    }

    /// Lets a stopped component start again.
    pub async fn start(&self, component: ClusterComponent) -> Result<(), NodeError> {
        match fs::remove_file(self.home.hold_file(component)) {
            Err(source) if source.kind() != io::ErrorKind::NotFound => {
                return Err(NodeError::HoldFile {
                    component: component.name(),
                    source,
                });
            }
            _ => {}
        }
        self.wait_for_component(component, true).await
    }

    async fn wait_for_component(&self, component: ClusterComponent, until_running: bool) -> Result<(), NodeError> {
        let deadline = Instant::now() + DEADLINE;
        while self.home.running_file(component).exists() != until_running {
            if Instant::now() > deadline {
                return Err(NodeError::Component {
                    component: component.name(),
                });
            }
            sleep(POLL_INTERVAL).await;
        }
        Ok(())
    }

    /// What a component wrote.
    pub fn read_log(&self, component: ClusterComponent) -> String {
        let text = fs::read(self.home.log_file(component)).unwrap_or_default();
        String::from_utf8_lossy(&text).into_owned()
    }

    /// Where the bytes of a volume are found from outside, mounted or not; `None` when it is no directory of
    /// the node.
    pub fn volume_directory(&self, volume: &PersistentVolume) -> Option<PathBuf> {
        let path = &volume.spec.as_ref()?.host_path.as_ref()?.path;
        let inside = Path::new(path).strip_prefix("/").ok()?;
        Some(
            Path::new("/proc")
                .join(self.init_pid.to_string())
                .join("root")
                .join(inside),
        )
    }

    /// Kills a program of a pod, as `kill -9` does.
    pub fn kill_program(&self, program: &'static str, pod: &str) -> Result<(), NodeError> {
        let none = || NodeError::Program {
            program,
            pod: pod.to_owned(),
        };
        let processes = fs::read_dir("/proc").map_err(|_| none())?;
        let ids = processes.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
        let is_it = |id: &String| {
            let about = |what: &str| fs::read(format!("/proc/{id}/{what}")).unwrap_or_default();
            let has = |text: Vec<u8>, word: &str| String::from_utf8_lossy(&text).contains(word);
            // Control groups spell the pod's identity with lines below or between.
            let groups = about("cgroup");
            has(about("cmdline"), program)
                && (has(groups.clone(), pod) || has(groups, &pod.replace('-', "_")))
        };
        let found = ids.filter(|id| id.parse::<u32>().is_ok()).find(is_it);
        let id = found.and_then(|id| Pid::from_raw(id.parse().ok()?));
        let id = id.ok_or_else(none)?;
        kill_process(id, Signal::KILL).map_err(|_| none())
    }

    /// Drops every packet between two groups of pods, in both directions, until the cut is healed.
    pub async fn cut_network(&self, some: &[Ipv4Addr], others: &[Ipv4Addr]) -> Result<NetworkCut, NodeError> {
        self.insert_rules(drop_rules(some, others)).await
    }

    /// Lets so many bytes of a pod pass to the S3 server, and drops all that follow, until the cut is healed. An upload of more
    /// bytes hangs in its middle.
    pub async fn stall_uploads(&self, of: Ipv4Addr, after: u64) -> Result<NetworkCut, NodeError> {
        // Each new rule comes before the last one.
        let stall = FirewallRule::DropToStore { of };
        self.insert_rules(vec![stall, FirewallRule::AcceptBytes { of, bytes: after }])
            .await
    }

    async fn insert_rules(&self, rules: Vec<FirewallRule>) -> Result<NetworkCut, NodeError> {
        let mut cut = NetworkCut {
            init_pid: self.init_pid,
            rules: Vec::new(),
        };
        for rule in rules {
            let words = rule_arguments(self.init_pid, "--insert", rule);
            run("nsenter", &words).await.map_err(NodeError::Rule)?;
            cut.rules.push(rule);
        }
        Ok(cut)
    }
}

/// A cut between pods. Dropping it heals it.
#[derive(Debug)]
#[must_use = "a cut that is dropped is healed"]
pub struct NetworkCut {
    init_pid: i32,
    rules: Vec<FirewallRule>,
}

impl NetworkCut {
    /// Whether a packet to the S3 server was dropped.
    pub async fn has_dropped_packets(&self) -> Result<bool, NodeError> {
        let words = iptables_arguments(self.init_pid, "--list INPUT --numeric --verbose --exact");
        let list = run("nsenter", &words).await.map_err(NodeError::Rule)?;
        Ok(self.rules.iter().any(|rule| match rule {
            FirewallRule::DropToStore { of } => dropped_packets(&list, *of) > 0,
            _ => false,
        }))
    }

    /// Lets packets pass again.
    pub async fn heal(mut self) -> Result<(), NodeError> {
        while let Some(&rule) = self.rules.last() {
            let words = rule_arguments(self.init_pid, "--delete", rule);
            run("nsenter", &words).await.map_err(NodeError::Rule)?;
            self.rules.pop();
        }
        Ok(())
    }
}

impl Drop for NetworkCut {
    fn drop(&mut self) {
        for &rule in &self.rules {
            // Fails only when the world is gone, and the rule with it.
            Command::new("nsenter")
                .args(rule_arguments(self.init_pid, "--delete", rule))
                .status()
                .ok();
        }
    }
}

/// Which packets pass or are dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FirewallRule {
    /// None from one pod to another passes.
    DropBetween { from: Ipv4Addr, to: Ipv4Addr },
    /// None from a pod to the S3 server passes.
    DropToStore { of: Ipv4Addr },
    /// So many bytes of them pass.
    AcceptBytes { of: Ipv4Addr, bytes: u64 },
}

fn drop_rules(some: &[Ipv4Addr], others: &[Ipv4Addr]) -> Vec<FirewallRule> {
    let pairs = some
        .iter()
        .flat_map(|&one| others.iter().map(move |&other| (one, other)));
    let distinct = pairs.filter(|(one, other)| one != other);
    distinct
        .flat_map(|(one, other)| {
            [(one, other), (other, one)].map(|(from, to)| FirewallRule::DropBetween { from, to })
        })
        .collect()
}

/// Pods hang on a bridge whose packets pass the same chain as those between networks. New rules come first,
/// or packets of old connections would pass by an earlier one.
fn rule_arguments(first: i32, verb: &str, rule: FirewallRule) -> Vec<String> {
    let store = |of| format!("INPUT --source {of} --protocol tcp --destination-port {S3_PORT}");
    let (matches, jump) = match rule {
        FirewallRule::DropBetween { from, to } => {
            let between = format!("FORWARD --source {from} --destination {to}");
            (between, "DROP")
        }
        FirewallRule::DropToStore { of } => (store(of), "DROP"),
        FirewallRule::AcceptBytes { of, bytes } => {
            let quota = format!("{} --match quota --quota {bytes}", store(of));
            (quota, "ACCEPT")
        }
    };
    let rule = format!("{verb} {matches} --match comment --comment {RULE_COMMENT} --jump {jump}");
    iptables_arguments(first, &rule)
}

/// A command of iptables in the world of a first process, without quotes in it.
fn iptables_arguments(first: i32, command: &str) -> Vec<String> {
    let line = format!("--target {first} --mount --net -- iptables --wait {command}");
    line.split(' ').map(str::to_owned).collect()
}

/// How many packets of a pod were dropped, by a list with the columns packets, bytes, target, protocol, options, in, out, source.
fn dropped_packets(list: &str, of: Ipv4Addr) -> u64 {
    let source = of.to_string();
    let lines = list.lines().filter(|line| line.contains(RULE_COMMENT));
    let printer_columns = lines.map(|line| line.split_whitespace().collect::<Vec<_>>());
    let mut counts = printer_columns.filter_map(|printer_columns| {
        let is_it = printer_columns.get(2) == Some(&"DROP") && printer_columns.get(7) == Some(&source.as_str());
        is_it.then(|| printer_columns.first()?.parse::<u64>().ok())?
    });
    counts.next().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: Ipv4Addr = Ipv4Addr::new(198, 18, 16, 2);
    const TWO: Ipv4Addr = Ipv4Addr::new(198, 18, 16, 3);

    #[test]
    fn a_cut_goes_both_ways_and_never_between_a_pod_and_itself() {
        let both = [(ONE, TWO), (TWO, ONE)].map(|(from, to)| FirewallRule::DropBetween { from, to });
        assert_eq!(drop_rules(&[ONE], &[ONE, TWO]), both);
    }

    #[test]
    fn every_rule_is_set_inside_the_world_and_names_both_ends() {
        let line = rule_arguments(42, "--insert", FirewallRule::DropBetween { from: ONE, to: TWO }).join(" ");
        assert!(
            line.starts_with("--target 42 --mount --net -- iptables "),
            "{line}"
        );
        assert!(
            line.contains("--source 198.18.16.2 --destination 198.18.16.3 "),
            "{line}"
        );
    }

    #[test]
    fn packets_dropped_are_read_from_the_rule_of_the_pod() {
        let list = "Chain INPUT (policy ACCEPT 9 packets, 9 bytes)\n\
            \x20   pkts      bytes target     prot opt in     out     source               destination\n\
            \x20      3      464 ACCEPT     6    --  *      *       198.18.16.2          0.0.0.0/0            tcp dpt:8333 quota: 500 bytes /* mainstay-cut */\n\
            \x20      7       52 DROP       6    --  *      *       198.18.16.2          0.0.0.0/0            tcp dpt:8333 /* mainstay-cut */\n";
        assert_eq!(dropped_packets(list, ONE), 7);
        assert_eq!(dropped_packets(list, TWO), 0);
    }
}
