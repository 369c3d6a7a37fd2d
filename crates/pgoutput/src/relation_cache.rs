use std::collections::BTreeMap;
use std::sync::Arc;

use crate::Relation;

/// The last Relation record of each table in a session. A new one, also in mid-transaction,
/// describes all rows that follow it.
#[derive(Clone, Debug, Default)]
pub struct RelationCache {
    relations: BTreeMap<u32, Arc<Relation>>,
}

impl RelationCache {
    /// Takes a Relation record; it replaces the table's older one.
    pub fn apply(&mut self, relation: Relation) -> Arc<Relation> {
        let relation = Arc::new(relation);
        self.relations.insert(relation.id, Arc::clone(&relation));
        relation
    }

    /// The table's record, if the session has sent one.
    #[must_use]
    pub fn get(&self, id: u32) -> Option<Arc<Relation>> {
        self.relations.get(&id).cloned()
    }

    /// Forgets everything: a new session sends its own records.
    pub fn clear(&mut self) {
        self.relations.clear();
    }
}
