//! Every rendered command line is valid: the programs' own parsers read it.

use clap::Parser as _;
use k8s_openapi::api::core::v1::{Container, PodSpec};
use mainstay_crds::etcd::LeaderElectionSpec;
use mainstay_crds::scalar::{DurationString, Schedule};
use mainstay_manifests::jobs::{
    RestoreJob, RestorePoint, SetAsideJob, VerifyJob, render_restore_job, render_set_aside_job,
    render_verify_job,
};
use mainstay_manifests::{RenderInput, render};
use mainstay_restorer::args::RestorerArgs;
use mainstay_restorer::commands::RestorerCommand;
use mainstay_sidecar::args::SidecarArgs;

use crate::support::{
    all_containers, etcd_variants, job_template, plain_etcd, pod_spec, render_all_copies,
    render_etcd, render_jobs, settings, store_spec,
};

/// The command line after the kubelet expanded variables and replaced `$$` by `$`.
fn command_line(container: &Container) -> Vec<String> {
    let command = container.command.iter().flatten();
    let args = container.args.iter().flatten();
    command
        .chain(args)
        .map(|arg| {
            let replaced = arg.replace("$(POD_NAME)", "etcd-main-0");
            assert!(!replaced.contains("$("), "{replaced}");
            replaced.replace("$$", "$")
        })
        .collect()
}

/// Flags in place of the pod name and namespace variables, which clap would read from the environment.
fn add_pod_identity(line: &mut Vec<String>) {
    line.extend([
        "--pod-name=etcd-main-0".into(),
        "--pod-namespace=shoot".into(),
    ]);
}

fn check_sidecar(name: &str, container: &Container) {
    let mut line = command_line(container);
    add_pod_identity(&mut line);
    let args = SidecarArgs::try_parse_from(&line).unwrap_or_else(|e| panic!("{name}: {e}"));
    args.etcd
        .into_config()
        .unwrap_or_else(|e| panic!("{name}: {e}"));
    args.http
        .into_config()
        .unwrap_or_else(|e| panic!("{name}: {e}"));
    let prefix = args.member.member_name_prefix.as_deref();
    args.kubernetes
        .into_settings(prefix)
        .unwrap_or_else(|e| panic!("{name}: {e}"));
    if line
        .iter()
        .any(|flag| flag.starts_with("--storage-provider"))
    {
        args.store
            .into_config()
            .unwrap_or_else(|e| panic!("{name}: {e}"));
    }
}

fn check_restorer(name: &str, container: &Container) {
    let mut line = command_line(container);
    if line[1] == "init" {
        line.push("--pod-name=etcd-main-0".into());
    }
    let args = RestorerArgs::try_parse_from(&line).unwrap_or_else(|e| panic!("{name}: {e}"));
    let is_right = match (&args.command, container.name.as_str()) {
        (RestorerCommand::Init(_), "init")
        | (RestorerCommand::Own(_), "change-backup-bucket-permissions") => true,
        (RestorerCommand::Restore(args), "restore" | "restore-drill") => {
            args.store.prefix.len() > 3
        }
        (RestorerCommand::Verify(args), "verify-backup") => args.data_dir.is_none(),
        (RestorerCommand::SetAside(args), "set-aside") => args.data_dir.is_absolute(),
        (RestorerCommand::Compact(args), "compact-backup") => args.store.prefix.len() > 3,
        (RestorerCommand::Copy(args), "copy-backups") => args.source.prefix == args.store.prefix,
        _ => false,
    };
    assert!(is_right, "{name}: {:?} in {}", args.command, container.name);
}

fn check_pod(name: &str, pod: &PodSpec) {
    for container in all_containers(pod) {
        match container.command.as_ref().unwrap()[0].as_str() {
            "mainstay-sidecar" => check_sidecar(name, container),
            "mainstay-restorer" => check_restorer(name, container),
            "etcd" => {}
            other => panic!("{name}: unknown program {other}"),
        }
    }
}

#[test]
fn member_containers_start_with_flags_their_programs_accept() {
    for (name, etcd, shape) in etcd_variants() {
        let manifests = render(&etcd, &settings(), &shape).unwrap();
        check_pod(&name, pod_spec(&manifests));
    }
}

/// The Jobs of a recovery from the newest copy.
fn render_volume_jobs() -> [k8s_openapi::api::batch::v1::Job; 3] {
    let mut etcd = plain_etcd();
    etcd.spec.backup.store = Some(store_spec("aws"));
    let shape = RenderInput::from_etcd(&etcd);
    let restore = RestoreJob {
        ordinal: 1,
        members: vec![1],
        cluster_token: "restored-5f3a".into(),
        target: RestorePoint::Newest,
        prefer_volume: true,
        revision_bump: None,
        fence: "5/a1b2/1".into(),
        deadline: None,
    };
    let aside = SetAsideJob {
        ordinal: 2,
        fence: "5/a1b2/1".into(),
        deadline: None,
    };
    [
        render_restore_job(&etcd, &settings(), &shape, &restore).unwrap(),
        render_set_aside_job(&etcd, &settings(), &shape, &aside).unwrap(),
        render_verify_job(&etcd, &settings(), &shape, &VerifyJob::default()).unwrap(),
    ]
}

#[test]
fn jobs_start_with_flags_their_program_accepts() {
    for (name, etcd, shape) in etcd_variants() {
        if etcd
            .spec
            .backup
            .store
            .as_ref()
            .is_none_or(|store| store.provider.is_none())
        {
            continue; // without a store there are no Jobs
        }
        for job in render_jobs(&etcd, &shape) {
            check_pod(&name, job_template(&job).spec.as_ref().unwrap());
        }
    }
    for job in render_volume_jobs() {
        check_pod("recovery", job_template(&job).spec.as_ref().unwrap());
    }
    for job in render_all_copies() {
        check_pod("copy", job_template(&job).spec.as_ref().unwrap());
    }
}

#[test]
fn values_the_crd_admits_give_accepted_flags() {
    let schedules = [
        "0 */24 * * *",
        "1/60 * * * *",
        "* 1-23 * * 7",
        "*/60 */24 */31 */12 */7",
        "59 23 31 12 1-7",
        "5/5 2/3 1/2 3/4 2/5",
    ];
    let spans = [
        "0s", "1ns", "1.5h", "1h30m10s", "0.5s", "300s", "20ms", "72h",
    ];
    for text in schedules {
        let mut etcd = plain_etcd();
        etcd.spec.backup.store = Some(store_spec("aws"));
        etcd.spec.backup.full_snapshot_schedule = Some(Schedule(text.into()));
        etcd.spec.etcd.defragmentation_schedule = Some(Schedule(text.into()));
        check_pod(text, pod_spec(&render_etcd(&etcd)));
    }
    for text in spans {
        let mut etcd = plain_etcd();
        etcd.spec.backup.store = Some(store_spec("aws"));
        let span = Some(DurationString(text.into()));
        etcd.spec.backup.delta_snapshot_period.clone_from(&span);
        etcd.spec.backup.garbage_collection_period.clone_from(&span);
        etcd.spec
            .backup
            .delta_snapshot_retention_period
            .clone_from(&span);
        etcd.spec.backup.etcd_snapshot_timeout.clone_from(&span);
        etcd.spec.etcd.etcd_defrag_timeout.clone_from(&span);
        etcd.spec.etcd.heartbeat_duration.clone_from(&span);
        etcd.spec.backup.leader_election = Some(LeaderElectionSpec {
            reelection_period: span.clone(),
            etcd_connection_timeout: span,
        });
        check_pod(text, pod_spec(&render_etcd(&etcd)));
    }
    for count in [i32::MIN, -1, 0, 1, i32::MAX] {
        let mut etcd = plain_etcd();
        etcd.spec.backup.store = Some(store_spec("aws"));
        etcd.spec.backup.max_backups_limit_based_gc = Some(count);
        check_pod(&format!("{count} backups"), pod_spec(&render_etcd(&etcd)));
    }
}

#[test]
fn pod_without_a_store_has_no_store_flags_or_leases() {
    let etcd = plain_etcd();
    let manifests = render(&etcd, &settings(), &RenderInput::from_etcd(&etcd)).unwrap();
    for container in all_containers(pod_spec(&manifests)) {
        let flags = container.args.iter().flatten();
        let about: Vec<&String> = flags.filter(|flag| flag.contains("stor")).collect();
        assert_eq!(about, Vec::<&String>::new(), "{}", container.name);
    }
    assert!(manifests.snapshot_leases.is_empty());
}
