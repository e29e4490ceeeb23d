CREATE INDEX orders_by_customer ON orders (customer);

-- journal: reverse
DROP INDEX orders_by_customer;
