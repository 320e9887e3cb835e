//! Schema limits of `Etcd`.

use serde_json::{Value, json};

use crate::admission::{AdmissionCases, claims};

const FULL_SAMPLE: &str = "etcd-everything.yaml";

claims!(
    an_etcd_needs_four_things,
    an_etcd_has_no_negative_size,
    odd_values_that_etcd_druid_accepts_are_accepted,
    names_and_containers_follow_their_patterns,
    enums_know_their_names,
    enums_of_ours_know_their_names,
    durations_have_units_and_no_sign,
    schedules_follow_their_grammars,
    quantities_are_numbers_with_suffixes,
    lists_have_their_lengths,
    times_are_written_as_rfc_3339_has_them,
);

fn an_etcd_needs_four_things(trials: &mut AdmissionCases) {
    for field in ["labels", "etcd", "backup", "replicas"] {
        trials.requires("etcd-minimal.yaml", &format!("/spec/{field}"));
    }
    trials.requires(FULL_SAMPLE, "/spec/backup/store/prefix");
    for tls in ["etcd/clientUrlTls", "etcd/peerUrlTls", "backup/tls"] {
        trials.requires(FULL_SAMPLE, &format!("/spec/{tls}/tlsCASecretRef"));
        trials.requires(FULL_SAMPLE, &format!("/spec/{tls}/serverTLSSecretRef"));
        trials.allows_missing(FULL_SAMPLE, &format!("/spec/{tls}/clientTLSSecretRef"));
    }
    for field in ["members", "clientEndpoints"] {
        trials.requires(
            FULL_SAMPLE,
            &format!("/spec/etcd/bootstrapWithExistingCluster/{field}"),
        );
    }
    for field in [
        "type",
        "status",
        "reason",
        "message",
        "lastTransitionTime",
        "lastUpdateTime",
    ] {
        trials.requires(FULL_SAMPLE, &format!("/status/conditions/0/{field}"));
    }
}

/// Enforced by the scale subresource; the schema has no minimum.
fn an_etcd_has_no_negative_size(trials: &mut AdmissionCases) {
    trials.rejects("etcd-minimal.yaml", "/spec/replicas", &[json!(-1)]);
}

fn odd_values_that_etcd_druid_accepts_are_accepted(trials: &mut AdmissionCases) {
    trials.accepts(
        "etcd-minimal.yaml",
        "/spec/replicas",
        &[json!(0), json!(2), json!(100)],
    );
    trials.accepts(
        FULL_SAMPLE,
        "/spec/backup/store/provider",
        &[json!("nobody"), json!("")],
    );
    trials.accepts(
        FULL_SAMPLE,
        "/spec/storageCapacity",
        &[
            json!(1),
            json!("1"),
            json!("-1Gi"),
            json!("1.5e3"),
            json!("+.5Ki"),
        ],
    );
    trials.accepts(
        FULL_SAMPLE,
        "/spec/etcd/serverPort",
        &[json!(0), json!(-1), json!(99_999)],
    );
    trials.accepts(
        FULL_SAMPLE,
        "/spec/sharedConfig/autoCompactionRetention",
        &[json!("whatever")],
    );
    trials.accepts(
        FULL_SAMPLE,
        "/spec/backup/tls/serverTLSSecretRef",
        &[json!({}), json!({ "name": "" })],
    );
    trials.accepts(
        FULL_SAMPLE,
        "/spec/etcd/additionalAdvertisePeerURLs",
        &[json!([])],
    );
    trials.accepts(
        FULL_SAMPLE,
        "/spec/externallyManagedMemberAddresses",
        &[json!(["10.0.0.1", "10.0.0.2", "fd00::1"])],
    );
    trials.accepts(
        FULL_SAMPLE,
        "/status/lastOperation/state",
        &[json!("Dreaming")],
    );
}

fn names_and_containers_follow_their_patterns(trials: &mut AdmissionCases) {
    trials.rejects(
        FULL_SAMPLE,
        "/spec/memberNamePrefix",
        &[
            json!("Blue"),
            json!("-a"),
            json!("a-"),
            json!(""),
            json!("a".repeat(64)),
        ],
    );
    trials.accepts(
        "etcd-minimal.yaml",
        "/spec/memberNamePrefix",
        &[json!("a"), json!("a-b-9"), json!("a".repeat(63))],
    );
    let container = "/spec/backup/store/container";
    trials.accepts(
        FULL_SAMPLE,
        container,
        &[json!("abc"), json!("A._-9"), json!("a".repeat(63))],
    );
    trials.rejects(
        FULL_SAMPLE,
        container,
        &[
            json!("ab"),
            json!(".abc"),
            json!("abc-"),
            json!("a/b"),
            json!("a".repeat(64)),
        ],
    );
    let member = "/spec/etcd/additionalAdvertisePeerURLs/0/memberName";
    trials.rejects(
        FULL_SAMPLE,
        member,
        &[
            json!("main"),
            json!("-0"),
            json!("main-x"),
            json!(format!("{}-0", "a".repeat(252))),
        ],
    );
    let source = "/spec/etcd/bootstrapWithExistingCluster/members/0/name";
    trials.rejects(
        FULL_SAMPLE,
        source,
        &[json!(""), json!("a.b"), json!("a".repeat(254))],
    );
}

fn enums_know_their_names(trials: &mut AdmissionCases) {
    for (pointer, good, bad) in [
        ("/spec/etcd/metrics", vec!["basic", "extensive"], "Basic"),
        (
            "/spec/etcd/backendBboltFreelistType",
            vec!["array", "map"],
            "hashmap",
        ),
        (
            "/spec/etcd/clientService/trafficDistribution",
            vec!["PreferSameZone", "PreferSameNode", "PreferClose"],
            "Anywhere",
        ),
        (
            "/spec/backup/garbageCollectionPolicy",
            vec!["Exponential", "LimitBased"],
            "None",
        ),
        (
            "/spec/backup/compression/policy",
            vec!["gzip", "lzw", "zlib"],
            "zstd",
        ),
        (
            "/spec/sharedConfig/autoCompactionMode",
            vec!["periodic", "revision"],
            "never",
        ),
    ] {
        trials.accepts(
            FULL_SAMPLE,
            pointer,
            &good.into_iter().map(Value::from).collect::<Vec<_>>(),
        );
        trials.rejects(FULL_SAMPLE, pointer, &[json!(bad)]);
    }
}

fn enums_of_ours_know_their_names(trials: &mut AdmissionCases) {
    let recovery = "/spec/mainstay/recovery/mode";
    trials.accepts(
        "etcd-mainstay.yaml",
        recovery,
        &[json!("Automatic"), json!("Approve"), json!("Manual")],
    );
    trials.rejects("etcd-mainstay.yaml", recovery, &[json!("automatic")]);
    trials.accepts(
        "etcd-mainstay.yaml",
        "/spec/mainstay/storage/growth",
        &[json!("Expand"), json!("Keep")],
    );
    trials.rejects(
        "etcd-mainstay.yaml",
        "/spec/mainstay/storage/growth",
        &[json!("Shrink")],
    );
    trials.rejects(
        "ops-snapshot.yaml",
        "/spec/config/onDemandSnapshot/type",
        &[json!("incremental")],
    );
    trials.rejects(
        "ops-verify-backup.yaml",
        "/spec/config/verifyBackup/chains",
        &[json!("Some")],
    );
    trials.rejects("ops-move-leader.yaml", "/status/state", &[json!("Done")]);
}

fn durations_have_units_and_no_sign(trials: &mut AdmissionCases) {
    for pointer in [
        "/spec/etcd/etcdDefragTimeout",
        "/spec/etcd/heartbeatDuration",
        "/spec/backup/deltaSnapshotRetentionPeriod",
        "/spec/backup/etcdSnapshotTimeout",
        "/spec/backup/leaderElection/reelectionPeriod",
        "/spec/backup/leaderElection/etcdConnectionTimeout",
    ] {
        trials.accepts(
            FULL_SAMPLE,
            pointer,
            &[
                json!("1h30m"),
                json!("1.5h"),
                json!("300ms"),
                json!("2µs"),
                json!("0s"),
            ],
        );
        trials.rejects(
            FULL_SAMPLE,
            pointer,
            &[
                json!("0"),
                json!("5"),
                json!("1d"),
                json!("-1s"),
                json!("1 s"),
                json!(""),
                json!(5),
            ],
        );
    }
    for pointer in [
        "/spec/backup/garbageCollectionPeriod",
        "/spec/backup/deltaSnapshotPeriod",
    ] {
        trials.rejects(FULL_SAMPLE, pointer, &[json!("0"), json!("1d")]);
    }
    let timeout = "/spec/waitForFinalSnapshot/timeout";
    trials.accepts(
        "copy-backups-everything.yaml",
        timeout,
        &[json!("0"), json!("10m")],
    );
    trials.rejects(
        "copy-backups-everything.yaml",
        timeout,
        &[json!("00"), json!("10"), json!("")],
    );
}

fn schedules_follow_their_grammars(trials: &mut AdmissionCases) {
    for pointer in [
        "/spec/etcd/defragmentationSchedule",
        "/spec/backup/fullSnapshotSchedule",
    ] {
        trials.accepts(
            FULL_SAMPLE,
            pointer,
            &[json!("0 */24 * * *"), json!("15 2 * * 7")],
        );
        trials.rejects(
            FULL_SAMPLE,
            pointer,
            &[
                json!("0 0 * * 0"),
                json!("1,2 * * * *"),
                json!("@daily"),
                json!("* * * *"),
            ],
        );
    }
    for pointer in [
        "/spec/mainstay/compaction/schedule",
        "/spec/mainstay/restoreDrill/schedule",
    ] {
        trials.accepts(
            "etcd-mainstay.yaml",
            pointer,
            &[json!("0 0 * * 0"), json!("1,2 * * * MON")],
        );
        trials.rejects(
            "etcd-mainstay.yaml",
            pointer,
            &[json!("@daily"), json!("* * * *"), json!("x".repeat(101))],
        );
    }
}

fn quantities_are_numbers_with_suffixes(trials: &mut AdmissionCases) {
    for pointer in [
        "/spec/etcd/quota",
        "/spec/storageCapacity",
        "/spec/backup/deltaSnapshotMemoryLimit",
    ] {
        trials.accepts(
            FULL_SAMPLE,
            pointer,
            &[
                json!("8Gi"),
                json!("500M"),
                json!(8_589_934_592_i64),
                json!("1e9"),
            ],
        );
        trials.rejects(
            FULL_SAMPLE,
            pointer,
            &[
                json!("8GiB"),
                json!("eight"),
                json!(""),
                json!(1.5),
                json!(true),
            ],
        );
    }
    let bytes = "/spec/mainstay/compaction/bytesThreshold";
    trials.rejects("etcd-mainstay.yaml", bytes, &[json!("much")]);
    let cpu = "/spec/etcd/resources/requests/cpu";
    trials.accepts(FULL_SAMPLE, cpu, &[json!(2), json!("0.5"), json!("250m")]);
    trials.rejects(FULL_SAMPLE, cpu, &[json!("a lot")]);
}

fn lists_have_their_lengths(trials: &mut AdmissionCases) {
    let extra = "/spec/etcd/additionalAdvertisePeerURLs";
    let entry = json!({ "memberName": "blue-etcd-main-0", "urls": ["https://a"] });
    trials.accepts(FULL_SAMPLE, extra, &[json!(vec![entry.clone(); 10])]);
    trials.rejects(FULL_SAMPLE, extra, &[json!(vec![entry; 11])]);
    let distinct = |count: usize| {
        json!(
            (0..count)
                .map(|n| format!("https://host-{n}"))
                .collect::<Vec<_>>()
        )
    };
    let doubled = json!(["https://a", "https://a"]);
    let long = json!([format!("https://{}", "a".repeat(2048))]);
    for (pointer, most) in [
        ("/spec/etcd/additionalAdvertisePeerURLs/0/urls", 5),
        (
            "/spec/etcd/bootstrapWithExistingCluster/members/0/peerUrls",
            5,
        ),
        (
            "/spec/etcd/bootstrapWithExistingCluster/clientEndpoints",
            10,
        ),
    ] {
        trials.accepts(FULL_SAMPLE, pointer, &[distinct(1), distinct(most)]);
        trials.rejects(
            FULL_SAMPLE,
            pointer,
            &[
                distinct(0),
                distinct(most + 1),
                doubled.clone(),
                long.clone(),
            ],
        );
    }
    let members = "/spec/etcd/bootstrapWithExistingCluster/members";
    let many = |count: usize| {
        let member = |n| json!({ "name": format!("m{n}"), "peerUrls": ["https://a"] });
        json!((0..count).map(member).collect::<Vec<_>>())
    };
    trials.accepts(FULL_SAMPLE, members, &[many(1), many(10)]);
    trials.rejects(FULL_SAMPLE, members, &[many(0), many(11)]);
}

fn times_are_written_as_rfc_3339_has_them(trials: &mut AdmissionCases) {
    let joined = "/status/bootstrapWithExistingCluster/joinedAt";
    trials.accepts(
        FULL_SAMPLE,
        joined,
        &[
            json!("2026-01-02T03:04:05.678Z"),
            json!("2026-01-02T03:04:05+01:00"),
        ],
    );
    trials.rejects(
        FULL_SAMPLE,
        joined,
        &[
            json!("yesterday"),
            json!("2026-01-02"),
            json!(1_767_225_600),
        ],
    );
}
