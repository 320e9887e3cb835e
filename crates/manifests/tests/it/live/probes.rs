//! The probes against real etcd servers.

use mainstay_manifests::{RenderInput, render};
use mainstay_testkit::etcd::free_url;
use mainstay_testkit::{EtcdCluster, EtcdOptions, EtcdRelease, each_version};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::{Duration, Instant, sleep, timeout};

use k8s_openapi::api::core::v1::Probe;

use crate::support::{find_container, plain_etcd, pod_spec, settings};

/// The result that the kubelet would get.
async fn is_passing(probe: &Probe, url: &str) -> bool {
    let seconds = probe.timeout_seconds.unwrap();
    let limit = Duration::from_secs(u64::try_from(seconds).unwrap());
    timeout(limit, send_probe(probe, url))
        .await
        .unwrap_or(false)
}

async fn send_probe(probe: &Probe, url: &str) -> bool {
    let Ok(mut stream) = TcpStream::connect(url.trim_start_matches("http://")).await else {
        return false;
    };
    let Some(get) = &probe.http_get else {
        return true;
    };
    let path = get.path.as_ref().unwrap();
    let request = format!("GET {path} HTTP/1.1\r\nHost: etcd\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut response = String::new();
    stream.read_to_string(&mut response).await.unwrap();
    response.starts_with("HTTP/1.1 200")
}

/// Readiness and liveness probe of a member with this version of etcd.
fn render_probes(version: EtcdRelease) -> (Probe, Probe) {
    let mut etcd = plain_etcd();
    let image = match version {
        EtcdRelease::V3_4 => "etcd:v3.4.23",
        EtcdRelease::V3_5 => "etcd:v3.5.16",
        EtcdRelease::V3_5New => "etcd:v3.5.30",
        EtcdRelease::V3_6 => "etcd:v3.6.16",
        EtcdRelease::V3_7 => "etcd:v3.7.3",
    };
    etcd.spec.etcd.image = Some(image.into());
    let manifests = render(&etcd, &settings(), &RenderInput::from_etcd(&etcd)).unwrap();
    let etcd = find_container(pod_spec(&manifests), "etcd").clone();
    (etcd.readiness_probe.unwrap(), etcd.liveness_probe.unwrap())
}

/// Waits until a probe has the expected result.
async fn wait_for_result(expected: bool, probe: &Probe, url: &str) -> bool {
    let deadline = Instant::now() + Duration::from_mins(2);
    while is_passing(probe, url).await != expected {
        if Instant::now() > deadline {
            return false;
        }
        sleep(Duration::from_millis(200)).await;
    }
    true
}

/// Like the kubelet: a probe fails only after `failureThreshold` failures in a row.
async fn passes_with_retries(probe: &Probe, url: &str) -> bool {
    for _ in 0..probe.failure_threshold.unwrap_or(3) {
        if is_passing(probe, url).await {
            return true;
        }
    }
    false
}

each_version! {
    async fn member_without_quorum_is_alive_and_not_ready(version) {
        let (readiness, liveness_probe) = render_probes(version);
        let mut listeners = Vec::new();
        let members = (0..3).map(|member| {
            let url = free_url();
            listeners.push(url.clone());
            let options = EtcdOptions::new().name(format!("m{member}")).peer_url(free_url());
            (version, options.flag("listen-metrics-urls", &url))
        });
        let mut cluster = EtcdCluster::start_members(members.collect()).await;
        for url in &listeners {
            assert!(wait_for_result(true, &readiness, url).await, "ready with a quorum");
            assert!(passes_with_retries(&liveness_probe, url).await);
        }
        cluster.members[1].kill();
        cluster.members[2].kill();
        assert!(wait_for_result(false, &readiness, &listeners[0]).await, "not ready without a quorum");
        for _ in 0..10 {
            assert!(passes_with_retries(&liveness_probe, &listeners[0]).await, "alive without a quorum");
            sleep(Duration::from_millis(300)).await;
        }
    }

    async fn a_member_whose_space_is_full_stays_alive_and_ready(version) {
        let (readiness, liveness_probe) = render_probes(version);
        let url = free_url();
        let options = EtcdOptions::new().flag("listen-metrics-urls", &url);
        let etcd = mainstay_testkit::EtcdServer::start(version, options.quota_bytes(16 << 20)).await;
        let mut client = etcd.client().await;
        let value = vec![0u8; 1 << 20];
        let mut is_full = false;
        for i in 0..64 {
            is_full |= client.put(format!("k{i}"), value.clone(), None).await.is_err();
        }
        assert!(is_full, "the quota was not reached");
        assert!(wait_for_result(true, &readiness, &url).await, "deletes must be possible");
        assert!(passes_with_retries(&liveness_probe, &url).await);
    }
}
