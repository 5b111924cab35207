"""Programs are made from shapes alone: of schedules, of layers, of trainings.

layers are written forward (layers, convolutions, zero); the tape writes their backward
"""
