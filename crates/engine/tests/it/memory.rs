use mainstay_engine::{conformance, memory_engine};

#[tokio::test]
async fn memory_engine_conforms() {
    conformance::everything(|quota| memory_engine(quota).unwrap()).await;
}
