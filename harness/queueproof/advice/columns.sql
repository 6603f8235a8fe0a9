-- The columns of somebody's tables, as the catalogue of their server has them. What extensions and
-- the harness's clock brought, what a partition repeats and what is computed is left out.
SELECT c.oid::int AS table_oid, c.oid::regclass::text AS "table", c.relname AS table_name,
  a.attname AS name, quote_ident(a.attname) AS sql, format_type(a.atttypid, a.atttypmod) AS type,
  CASE
    WHEN t.typtype = 'e' THEN 'enum'
    WHEN t.oid IN ('int2'::regtype, 'int4'::regtype, 'int8'::regtype) THEN 'int'
    WHEN t.oid IN ('json'::regtype, 'jsonb'::regtype) THEN 'json'
    WHEN t.typcategory = 'S' THEN 'text'
    ELSE t.typname
  END AS family,
  a.attnotnull AND NOT a.atthasdef AND a.attidentity = '' AS needed,
  NOT a.attnotnull AS nullable,
  COALESCE(pg_get_expr(d.adbin, d.adrelid), '') AS "default",
  ARRAY(SELECT e.enumlabel::text FROM pg_enum e WHERE e.enumtypid = t.oid ORDER BY enumsortorder)
    AS labels,
  ARRAY(
    SELECT pg_get_constraintdef(k.oid) FROM pg_constraint k
    WHERE k.contype = 'c' AND (k.conrelid = c.oid AND k.conkey = ARRAY[a.attnum]
      OR k.contypid = a.atttypid)
  ) AS checks,
  (SELECT k.confrelid::int FROM pg_constraint k
   WHERE k.contype = 'f' AND k.conrelid = c.oid AND k.conkey = ARRAY[a.attnum] LIMIT 1) AS parent,
  COALESCE(a.attnum = ANY (p.conkey), false) AS "key",
  COALESCE(col_description(c.oid, a.attnum), '') AS comment
FROM pg_class c
JOIN pg_namespace n ON n.oid = c.relnamespace
JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
JOIN pg_type own ON own.oid = a.atttypid
JOIN pg_type t ON t.oid = CASE WHEN own.typtype = 'd' THEN own.typbasetype ELSE own.oid END
LEFT JOIN pg_attrdef d ON d.adrelid = c.oid AND d.adnum = a.attnum
LEFT JOIN pg_constraint p ON p.conrelid = c.oid AND p.contype = 'p'
WHERE c.relkind IN ('r', 'p') AND NOT c.relispartition AND a.attgenerated = ''
  AND n.nspname NOT IN ('pg_catalog', 'information_schema', 'clock') AND n.nspname !~ '^pg_'
  AND NOT EXISTS (SELECT FROM pg_depend e WHERE e.objid = c.oid AND e.deptype = 'e')
ORDER BY c.oid, a.attnum
