//! The settings that Tributary gives its own queries, beside those that its user has.

use tributary::upstream::Upstream;
use tributary::views::neutral::grouping;

use crate::support::Database;

async fn block_size(upstream: &Upstream) -> String {
    let grouping = grouping(upstream).await.unwrap();
    let answer = grouping.bytes("SELECT getSetting('max_block_size')", "TabSeparated").await.unwrap();
    String::from_utf8(answer.to_vec()).unwrap().trim().to_string()
}

#[tokio::test(flavor = "multi_thread")]
async fn blocks_are_made_smaller_but_only_where_that_is_allowed() {
    let database = Database::new("neutral");
    let upstream = database.upstream();
    assert_eq!(block_size(&upstream).await, "32768");
    assert_eq!(block_size(&upstream.with_settings([("max_block_size", "1000")].into_iter())).await, "1000");
    let mut config = database.config();
    config.user = "fixed".into();
    assert_eq!(block_size(&Upstream::new(config)).await, "50000");
}
