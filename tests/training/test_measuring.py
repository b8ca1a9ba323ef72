"""What is measured depends on the weights and the text alone."""


def test_a_measurement_is_the_same_again_in_any_order_and_after_training(
    make_model, make_data, make_trainer
):
    model, data = make_model(), make_data()

    def measured(stage: str) -> float:
        run = getattr(make_trainer(limit_val_batches=1.0), stage)
        [found] = run(model, datamodule=data, verbose=False)
        return found[f"{'val' if stage == 'validate' else stage}/nats"]

    before = [measured(stage) for stage in ("validate", "test", "validate")]
    weights = {name: weight.clone() for name, weight in model.state_dict().items()}
    trainer = make_trainer(limit_val_batches=2, val_check_interval=2)
    trainer.fit(model, datamodule=data)
    changed = measured("validate")
    model.load_state_dict(weights)
    after = [measured(stage) for stage in ("test", "validate")]
    assert before[0] == before[2] == after[1] != changed
    assert before[1] == after[0]
