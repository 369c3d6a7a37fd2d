use std::time::Duration;

use anyhow::{Context as _, Result};
use testkit::Postgres;
use tokio::time::{MissedTickBehavior, interval};
use tokio_postgres::{Client, Statement};

const SCHEMA: &str = include_str!("../../../../sql/demo/shop.sql");
const CONFIRM: &str = include_str!("../../../../sql/demo/confirm.sql");
const ATTEND: &str = include_str!("../../../../sql/demo/attend.sql");

/// A pause between two customers, so that there is something to watch.
const CUSTOMER_EVERY: Duration = Duration::from_millis(12);

/// Registrations that are confirmed and attended, each change with its event in one statement. Some
/// are changed by two callers at once, of whom one loses the race for the version.
pub(crate) struct Shop {
    callers: [Client; 2],
    confirm: [Statement; 2],
    attend: Statement,
    registrations: u32,
    committed: Vec<String>,
    races_lost: usize,
}

impl Shop {
    pub(crate) async fn open(postgres: &Postgres, registrations: u32) -> Result<Self> {
        let connect = || postgres.connect_to("postgres", "shop");
        let callers = [connect().await?, connect().await?];
        callers[0].batch_execute(SCHEMA).await.context("make the shop's table")?;
        callers[0]
            .execute(
                "INSERT INTO registration (id) SELECT 'r-' || n FROM generate_series(1, $1::int) n",
                &[&registrations.cast_signed()],
            )
            .await
            .context("take the registrations")?;
        let confirm = [callers[0].prepare(CONFIRM).await?, callers[1].prepare(CONFIRM).await?];
        let attend = callers[0].prepare(ATTEND).await?;
        Ok(Self { callers, confirm, attend, registrations, committed: Vec::new(), races_lost: 0 })
    }

    /// Serves every customer; `at` hears of each step before it is taken.
    pub(crate) async fn sell(&mut self, mut at: impl FnMut(u32, u32) -> Result<()>) -> Result<()> {
        let mut customers = interval(CUSTOMER_EVERY);
        customers.set_missed_tick_behavior(MissedTickBehavior::Delay);
        for number in 1..=self.registrations {
            customers.tick().await;
            at(number, self.registrations)?;
            let id = format!("r-{number}");
            if number % 5 == 0 {
                self.race(&id).await?;
            } else {
                let row = self.callers[0].query_opt(&self.confirm[0], &[&id, &1_i64]).await?;
                self.note(row.as_ref());
            }
            let row = self.callers[0].query_opt(&self.attend, &[&id, &2_i64]).await?;
            self.note(row.as_ref());
        }
        Ok(())
    }

    /// Two callers saw the same version; one of them gets a row back.
    async fn race(&mut self, id: &str) -> Result<()> {
        let [first, second] = &self.callers;
        let parameters: [&(dyn tokio_postgres::types::ToSql + Sync); 2] = [&id, &1_i64];
        let (first, second) = tokio::join!(
            first.query_opt(&self.confirm[0], &parameters),
            second.query_opt(&self.confirm[1], &parameters)
        );
        let (first, second) = (first?, second?);
        self.note(first.as_ref());
        self.note(second.as_ref());
        Ok(())
    }

    fn note(&mut self, row: Option<&tokio_postgres::Row>) {
        match row.map(|row| row.get::<_, EventId>(0)) {
            Some(EventId(id)) => self.committed.push(id),
            None => self.races_lost += 1,
        }
    }

    pub(crate) fn committed(&self) -> &[String] {
        &self.committed
    }

    pub(crate) const fn races_lost(&self) -> usize {
        self.races_lost
    }
}

/// A uuid in its text form.
struct EventId(String);

impl<'a> tokio_postgres::types::FromSql<'a> for EventId {
    fn from_sql(
        _: &tokio_postgres::types::Type,
        raw: &'a [u8],
    ) -> Result<Self, Box<dyn std::error::Error + Sync + Send>> {
        let bytes = <[u8; 16]>::try_from(raw)?;
        let digits = format!("{:032x}", u128::from_be_bytes(bytes));
        let parts = [&digits[..8], &digits[8..12], &digits[12..16], &digits[16..20], &digits[20..]];
        Ok(Self(parts.join("-")))
    }

    fn accepts(of: &tokio_postgres::types::Type) -> bool {
        *of == tokio_postgres::types::Type::UUID
    }
}
