//! Renders the report of the sidecar's benchmark.

use std::fmt::Write;

use super::super::machine::Machine;
use super::super::report;
use super::super::targets::{
    RatioLimit, TargetResult, format_megabytes, memory_target, ratio_target,
};
use super::SidecarBenchArgs;
use super::capture::CaptureFigures;
use super::full_snapshots::FullSnapshotFigures;

/// The default limit of deltas in memory, the same as in etcd-backup-restore.
const DELTA_MEMORY_LIMIT: u64 = 10 << 20;

const METHOD: &str = "\
## What is measured

`mainstay-sidecar` runs as a user runs it, next to one etcd, with a store of the provider `Local` on the same disk.

- **Full snapshots** are requested over HTTP, each after a new write, and answered when they are stored and synced. `etcdctl snapshot save` of etcd, and `gzip -1` of the
  saved file, run alternately with them on the same etcd.
- **Capture** is a stream of single puts of 1 000 B at a steady rate. The benchmark records when etcd has answered each write. Every 50 ms it reads what the sidecar has
  captured. The lag is the age of the oldest answered write that is not captured. CPU time is that of both processes while the writes run. etcd syncs to a directory in
  memory, so that it keeps the rate and does not compete with the store for the disk. 100 writers run in parallel.

Memory is the maximum resident set of the process, including deltas in memory; their limit is 10 MiB by default. 1 MB is 1 000 000 bytes.
";

/// The share of the requested rate that etcd must sustain.
const MIN_RATE_RATIO: f64 = 0.95;

pub(super) fn render(
    args: &SidecarBenchArgs,
    machine: &Machine,
    fulls: &[FullSnapshotFigures],
    flow: &CaptureFigures,
) -> anyhow::Result<String> {
    let mut page = String::from(
        "# Benchmarks of the sidecar\n\n`make bench` writes this page. It compares the sidecar with etcd's own tools. Ratios are of one run.\n\n",
    );
    writeln!(page, "| | |\n| --- | --- |\n| date | {} |", args.date)?;
    report::write_machine(&mut page, machine)?;
    writeln!(
        page,
        "| runs | {}; median of times, maximum of memory |",
        args.runs
    )?;
    page.push_str("\n## Targets\n\n");
    report::write_targets(&mut page, &evaluate_targets(args, fulls, flow))?;
    for one in fulls {
        write_figures(&mut page, one)?;
    }
    write_capture(&mut page, flow)?;
    page.push('\n');
    page.push_str(METHOD);
    Ok(page)
}

fn evaluate_targets(
    args: &SidecarBenchArgs,
    fulls: &[FullSnapshotFigures],
    flow: &CaptureFigures,
) -> Vec<TargetResult> {
    let mut claims = Vec::new();
    for one in fulls {
        let data = format_megabytes(one.database_bytes);
        let (gzip, zstd) = (one.gzip.cost, one.zstd.cost);
        let work = one.save.seconds + one.compress.seconds;
        let what = "full, gzip: time against `snapshot save` and `gzip -1`";
        claims.push(ratio_target(
            &data,
            what,
            gzip.seconds / work,
            RatioLimit::AtMost(1.2),
        ));
        let what = "full, zstd: time against `snapshot save` alone";
        let ratio = zstd.seconds / one.save.seconds;
        claims.push(ratio_target(&data, what, ratio, RatioLimit::AtMost(1.1)));
        let most = 64_000_000 + DELTA_MEMORY_LIMIT;
        for (what, cost) in [("gzip", gzip), ("zstd", zstd)] {
            let what = format!("full, {what}: peak memory");
            claims.extend(
                cost.peak_bytes
                    .map(|peak| memory_target(&data, &what, peak, most)),
            );
        }
    }
    let stream = format!("{:.0}/s", achieved_rate(flow));
    let [_, p99, _] = flow.lag_seconds;
    // The lag is only meaningful if etcd sustained the rate.
    let asked = u32::try_from(args.rate).unwrap_or(u32::MAX);
    let kept = achieved_rate(flow) / f64::from(asked);
    claims.push(TargetResult {
        subject: stream.clone(),
        metric: "capture: etcd keeps the rate".to_owned(),
        target: format!("> {MIN_RATE_RATIO} × {}/s", args.rate),
        measured: format!("{kept:.2} ×"),
        is_met: kept > MIN_RATE_RATIO,
    });
    claims.push(TargetResult {
        subject: stream.clone(),
        metric: "capture: lag, p99".to_owned(),
        target: "< 1 s".to_owned(),
        measured: format!("{p99:.3} s"),
        is_met: p99 < 1.0,
    });
    let ratio = flow.sidecar_cpu_seconds / flow.etcd_cpu_seconds;
    claims.push(TargetResult {
        subject: stream,
        metric: "capture: CPU time against etcd's".to_owned(),
        target: "< 0.25 ×".to_owned(),
        measured: format!("{ratio:.3} ×"),
        is_met: ratio < 0.25,
    });
    claims
}

fn write_figures(page: &mut String, one: &FullSnapshotFigures) -> anyhow::Result<()> {
    let data = format_megabytes(one.database_bytes);
    writeln!(page, "\n## Full snapshots of {data}, {} keys\n", one.keys)?;
    writeln!(
        page,
        "gzip stores {}, zstd {}.\n",
        format_megabytes(one.gzip.stored_bytes),
        format_megabytes(one.zstd.stored_bytes)
    )?;
    report::write_table_head(page)?;
    report::write_row(page, "**full snapshot, gzip**", one.gzip.cost)?;
    report::write_row(page, "**full snapshot, zstd**", one.zstd.cost)?;
    report::write_row(page, "`etcdctl snapshot save`", one.save)?;
    report::write_row(page, "`gzip -1` of what it saved", one.compress)
}

fn write_capture(page: &mut String, flow: &CaptureFigures) -> anyhow::Result<()> {
    let [p50, p99, max] = flow.lag_seconds;
    writeln!(
        page,
        "\n## Capture at {:.0} writes a second\n",
        achieved_rate(flow)
    )?;
    writeln!(page, "| | |\n| --- | --- |")?;
    writeln!(
        page,
        "| writes | {} in {:.1} s |",
        flow.writes, flow.seconds
    )?;
    writeln!(
        page,
        "| lag: p50, p99, max | {p50:.3} s, {p99:.3} s, {max:.3} s |"
    )?;
    writeln!(page, "| samples | {} |", flow.samples)?;
    writeln!(
        page,
        "| CPU time of the sidecar, of etcd | {:.2} s, {:.2} s |",
        flow.sidecar_cpu_seconds, flow.etcd_cpu_seconds
    )?;
    writeln!(
        page,
        "| peak memory of the sidecar | {} |",
        format_megabytes(flow.peak_bytes)
    )?;
    writeln!(page, "| gaps | {} |", flow.gaps)?;
    Ok(())
}

#[expect(clippy::cast_precision_loss, reason = "a rate needs three digits")]
fn achieved_rate(flow: &CaptureFigures) -> f64 {
    flow.writes as f64 / flow.seconds
}
